"""An echo of small messages, both ends in one process, with socket options set on both ends. Each
argument is LEVEL NAME VALUE, or LEVEL NAME = for the value that there is; after --listener on the
listening socket alone. One that the kernel refuses is as good as none."""
import socket
import sys
import threading


of_listener = sys.argv[1:2] == ["--listener"]
options = sys.argv[2:] if of_listener else sys.argv[1:]


def set_all(s):
    for argument in options:
        level, name, value = argument.split()
        try:
            same = s.getsockopt(int(level), int(name), 16) if value == "=" else int(value)
            s.setsockopt(int(level), int(name), same)
        except OSError:
            pass


listener = socket.create_server(("127.0.0.1", 0))
if of_listener:
    set_all(listener)


def serve():
    c, _ = listener.accept()
    if not of_listener:
        set_all(c)
    while data := c.recv(65536):
        c.sendall(data)


thread = threading.Thread(target=serve)
thread.start()
c = socket.create_connection(listener.getsockname())
if not of_listener:
    set_all(c)
for i in range(100):
    c.sendall(b"x" * 1000)
    n = 0
    while n < 1000:
        n += len(c.recv(1000 - n)) or sys.exit("the end")
c.close()
thread.join()
