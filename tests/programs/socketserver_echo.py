"""An echo server of `socketserver`, with a thread or a process for each connection, and its
clients: `server|client thread|fork ADDRESS PORT`. Clients are threads that block; each compares
every line.
"""

import os
import socket
import socketserver
import sys
import threading

role, kind, address, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)


class Threads(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 50


class Forks(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 50


def ask(n, bad):
    try:
        with socket.create_connection((address, port)) as s:
            f = s.makefile("rwb")
            for i in range(int(os.environ.get("LINES", 300))):
                line = b"%d:%d:" % (n, i) + b"x" * (i * 37 % 3000) + b"\n"
                f.write(line)
                f.flush()
                assert f.readline() == line
            s.shutdown(socket.SHUT_WR)
            assert f.read() == b""
    except BaseException as e:
        bad.append(repr(e))


if role == "server":
    try:
        (Threads if kind == "thread" else Forks)((address, port), Lines).serve_forever()
    except KeyboardInterrupt:
        pass
else:
    bad = []
    threads = [threading.Thread(target=ask, args=(n, bad)) for n in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sys.exit(bad[0] if bad else print("10 clients, all bytes as sent"))
