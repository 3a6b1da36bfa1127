"""A client that may not use TCP, of a server that has no library: `unattached.py PORT HOW`. It prints what it was told, and
after how many seconds."""
import errno
import select
import socket
import sys
import time

port, how = int(sys.argv[1]), sys.argv[2]
c = socket.create_connection(("127.0.0.1", port))
began = time.monotonic()
ready = "without asking"
if how == "poll":
    p = select.poll()
    p.register(c, select.POLLIN)
    ready = bool(p.poll(20000))
elif how == "epoll":
    p = select.epoll()
    p.register(c, select.EPOLLIN)
    ready = bool(p.poll(20))
try:
    told = c.send(b"x") if how == "send" else c.recv(1)
except OSError as e:
    told = errno.errorcode[e.errno]
print(how, "ready" if ready is True else ready, told, round(time.monotonic() - began))
