"""php_server.py FILE PORT: a GET is answered with the file; ECHO and everything after it comes
back."""
import signal
import socket
import sys
import threading

CONTENT = open(sys.argv[1], "rb").read()


def serve(c):
    with c:
        head = c.recv(65536)
        if head.startswith(b"GET "):
            while b"\r\n\r\n" not in head:
                head += c.recv(65536)
            c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(CONTENT))
            for at in range(0, len(CONTENT), 65536):
                c.sendall(CONTENT[at : at + 65536])
        else:
            data = head.removeprefix(b"ECHO\n") or c.recv(65536)
            while data:
                c.sendall(data)
                data = c.recv(65536)


signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=16)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
