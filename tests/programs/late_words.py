"""Sends to a peer that has closed, twice: TCP takes the first and answers it with a reset, the
second fails."""
import os
import socket
import sys
import time

listener = socket.create_server(("127.0.0.1", 0))
if not os.fork():
    with socket.create_connection(listener.getsockname()) as s:
        for _ in range(3000):
            s.sendall(b"x" * 100)
            s.recv(100, socket.MSG_WAITALL)
    sys.exit(0)
s, _ = listener.accept()
listener.close()
while data := s.recv(100, socket.MSG_WAITALL):
    s.sendall(data)
os.wait()
for _ in range(2):
    try:
        print(s.send(b"y" * 1000))
    except OSError as e:
        print(e.strerror)
    time.sleep(0.2)
