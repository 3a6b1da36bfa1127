"""A client that may not use TCP: `unattached.py WHOM HOW`. It prints what it was told, and after
how many seconds.

WHOM is the port of a server; `itself`, which does not accept; or `accepted`, itself, which has
accepted. HOW is the call, with `-nb` made again and again on a socket that does not block."""
import errno
import os
import select
import socket
import sys
import tempfile
import time

POLLS = {"pollin": select.POLLIN, "pollout": select.POLLOUT, "pollerr": 0}
EPOLLS = {
    "epollin": select.EPOLLIN,
    "epollout": select.EPOLLOUT,
    "epollerr": 0,
    "epollet": select.EPOLLIN | select.EPOLLET,
}
SELECTS = {"select": (True, True), "selectin": (True, False), "selectout": (False, True)}


def told(call, again):
    """What a call says; with `again` as often as it takes, since it does not block."""
    while True:
        try:
            said = call()
            return "end" if said == b"" else repr(said)
        except BlockingIOError:
            if not again:
                return "EAGAIN"
            time.sleep(0.005)
        except OSError as e:
            return errno.errorcode[e.errno]


def pipe_with(data):
    r, w = os.pipe()
    os.write(w, data)
    return r


def piece():
    f = tempfile.TemporaryFile()
    f.write(bytes(100))
    f.flush()
    return f


def call(c, how):
    """The call of that name."""
    if how == "send":
        return lambda: c.send(b"x")
    if how == "recv":
        return lambda: c.recv(1)
    if how == "sendfile":
        f = piece()
        return lambda: os.sendfile(c.fileno(), f.fileno(), 0, 100)
    if how == "splicein":
        r = pipe_with(b"zz")
        return lambda: os.splice(r, c.fileno(), 2)
    _, w = os.pipe()
    return lambda: os.splice(c.fileno(), w, 2)


def ready(c, how):
    """What a wait reports."""
    if how in SELECTS:
        r, w = ([c] if asked else [] for asked in SELECTS[how])
        r, w, _ = select.select(r, w, [], 20)
        return "in" * len(r) + "out" * len(w)
    waits = select.poll() if how in POLLS else select.epoll()
    waits.register(c, POLLS[how] if how in POLLS else EPOLLS[how])
    bits = sum(bits for _, bits in waits.poll(20000 if how in POLLS else 20))
    names = [("in", select.POLLIN), ("out", select.POLLOUT), ("err", select.POLLERR), ("hup", select.POLLHUP)]
    return "".join(name for name, bit in names if bits & bit)


def connection(whom):
    if whom not in ("itself", "accepted"):
        return socket.create_connection(("127.0.0.1", int(whom))), None
    listener = socket.create_server(("127.0.0.1", 0))
    c = socket.create_connection(listener.getsockname())
    return (listener.accept()[0], (listener, c)) if whom == "accepted" else (c, listener)


def main():
    whom, how = sys.argv[1:]
    c, _others = connection(whom)
    again = how.endswith("-nb")
    if again:
        c.setblocking(False)
    how = how.removesuffix("-nb")
    began = time.monotonic()
    waits = how in SELECTS or how in POLLS or how in EPOLLS
    found = ready(c, how) if waits else "-"
    error = "-"
    if "err" in found:
        error = errno.errorcode.get(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
    sends = how in ("pollout", "epollout", "selectout")
    said = told(call(c, ("send" if sends else "recv") if waits else how), again)
    print(found, error, said, round(time.monotonic() - began), flush=True)


main()
