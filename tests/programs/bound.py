# bound.py END... : echoes 300 KB over a loopback connection whose ends named ("listener", "client")
# are bound to lo; says "ok".
import socket
import sys
import threading


def bind(s, end):
    if end in sys.argv:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")


def serve():
    c, _ = listener.accept()
    while d := c.recv(65536):
        c.sendall(d)


listener = socket.socket()
bind(listener, "listener")
listener.bind(("127.0.0.1", 0))
listener.listen()
t = threading.Thread(target=serve)
t.start()
c = socket.socket()
bind(c, "client")
c.settimeout(10)
c.connect(listener.getsockname())
for _ in range(300):
    c.sendall(b"x" * 1000)
    n = 0
    while n < 1000:
        n += len(c.recv(1000 - n)) or sys.exit("end")
c.close()
t.join()
print("ok")
