"""Programs for the suite `forkmode`, each called as NAME ADDRESS PORT COUNT.

polling: an echo server of one process that waits in poll before it reads, and whose sockets never
    block.
zeros: a server whose first bytes are four zeros, as upstream's greeting is.
zeros-reader: its client, which must get all of them, and nothing else.
silent: a client that says nothing until there is the file that its last argument names; then it
    asks. COUNT says whether it is to get upstream's greeting; it must get no other byte.
turns: a server that forks with the connection open. Parent and child write to it in turns, and go
    on when the other has written.
turns-reader: its client.
"""
import os
import select
import socket
import sys
import time

role, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TEXT = b"\0\0\0\0 and then an ordinary program's words"


def listening():
    s = socket.create_server((address, port))
    return s


def everything(s):
    got = b""
    while data := s.recv(65536):
        got += data
    return got


if role == "polling":
    listener = listening()
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    left, peers, unsent = count, {}, {}
    while left or peers:
        for fd, events in poll.poll():
            if fd == listener.fileno():
                s, _ = listener.accept()
                s.setblocking(False)
                peers[s.fileno()], unsent[s.fileno()] = s, b""
                poll.register(s, select.POLLIN)
                left -= 1
                continue
            s = peers[fd]
            if events & select.POLLIN:
                try:
                    data = s.recv(65536)
                except BlockingIOError:
                    continue
                if not data:
                    poll.unregister(fd)
                    del peers[fd], unsent[fd]
                    s.close()
                    continue
                unsent[fd] += data
            if unsent[fd]:
                try:
                    n = s.send(unsent[fd])
                except BlockingIOError:
                    n = 0
                unsent[fd] = unsent[fd][n:]
            poll.modify(fd, select.POLLOUT if unsent[fd] else select.POLLIN)
elif role == "zeros":
    listener = listening()
    for _ in range(count):
        s, _ = listener.accept()
        s.sendall(TEXT)
        s.shutdown(socket.SHUT_WR)
        assert everything(s) == b"thanks"
        s.close()
elif role == "zeros-reader":
    for _ in range(count):
        s = socket.create_connection((address, port))
        got = everything(s)
        assert got == TEXT, got
        s.sendall(b"thanks")
        s.close()
elif role == "silent":
    s = socket.create_connection((address, port))
    print("connected", flush=True)
    while not os.path.exists(sys.argv[5]):
        time.sleep(0.05)
    s.sendall(b"late")
    s.shutdown(socket.SHUT_WR)
    got = everything(s)
    assert got == (b"\0\0\0\0" if count else b"") + b"late", got
elif role == "turns":
    listener = listening()
    for _ in range(count):
        s, _ = listener.accept()
        assert s.recv(5) == b"begin"
        for i in range(4):
            s.sendall(b"parent %d." % i)
            child = os.fork()
            if child == 0:
                listener.close()
                s.sendall(b"child %d." % i)
                assert s.recv(1) == b"%d" % i
                s.close()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
        s.sendall(b"end")
        s.shutdown(socket.SHUT_WR)
        assert everything(s) == b"over"
        s.close()
elif role == "turns-reader":
    for _ in range(count):
        s = socket.create_connection((address, port))
        s.sendall(b"begin")
        s.sendall(b"0123")
        got = everything(s)
        assert got == b"".join(b"parent %d.child %d." % (i, i) for i in range(4)) + b"end", got
        s.sendall(b"over")
        s.close()
