"""A server that pushes to silent readers: pushing.py NUMBER SIZE CONNECTIONS MILLISECONDS.

Both ends are here, one connection after the other. The reader asks once, and gets NUMBER messages
of SIZE bytes, so many milliseconds after each other. It reads each whole before the next is sent,
and checks it.
"""

import socket
import sys
import time

number, size, connections, pause = map(int, sys.argv[1:])
listener = socket.create_server(("127.0.0.1", 0))
for _ in range(connections):
    reader = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    reader.sendall(b"GET")
    assert server.recv(100) == b"GET"
    for k in range(number):
        time.sleep(pause / 1000)
        message = bytes([k % 251]) * size
        server.sendall(message)
        assert reader.recv(size, socket.MSG_WAITALL) == message
    server.close()
    assert reader.recv(1) == b""
    reader.close()
