"""Connections by TCP Fast Open, both ends in one process: MSG_FASTOPEN and TCP_FASTOPEN_CONNECT,
blocking and not, over IPv4 and IPv6. They go to a server, and to a port without one. It prints what
each call said, which must be the same with and without the library. At the end it prints how many
bytes it has sent. With an argument it says nothing of what differs where Fast Open is an ordinary
connect."""
import ctypes
import errno
import select
import socket
import struct
import sys
import threading

FASTOPEN, FASTOPEN_CONNECT = 23, 30
MESSAGE = b"m" * 700
ROUNDS = 100
libc = ctypes.CDLL(None, use_errno=True)
sent = 0


def said(call, *arguments):
    """The result, or the name of the error."""
    try:
        return call(*arguments)
    except OSError as e:
        return errno.errorcode[e.errno]


def sendmmsg(c, address):
    """One message by sendmmsg, of two that ask for a connection: the second finds one."""
    if c.family == socket.AF_INET6:
        name = struct.pack("=H", c.family) + struct.pack("!HI16sI", address[1], 0, socket.inet_pton(c.family, address[0]), 0)
    else:
        name = struct.pack("=H", c.family) + struct.pack("!H4s8x", address[1], socket.inet_aton(address[0]))
    place = ctypes.create_string_buffer(name, len(name))
    data = ctypes.create_string_buffer(MESSAGE, len(MESSAGE))
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(data), len(MESSAGE))
    header = [ctypes.addressof(place), len(name), ctypes.addressof(vector), 1, 0, 0, 0, 0]
    list_ = (ctypes.c_size_t * 16)(*header, *header)
    n = libc.sendmmsg(c.fileno(), list_, 2, socket.MSG_FASTOPEN)
    if n < 0:
        return errno.errorcode[ctypes.get_errno()]
    return f"{n} of {list_[7] & 0xffffffff}"


def connect_and_send(c, address):
    c.setsockopt(socket.IPPROTO_TCP, FASTOPEN_CONNECT, 1)
    told = said(c.connect, address)
    if told == "EINPROGRESS":
        select.select([], [c], [], 5)
    elif told:
        return told, None
    took = said(c.send, MESSAGE)
    while took == "EAGAIN" and sys.argv[1:]:
        select.select([], [c], [], 5)
        took = said(c.send, MESSAGE)
    return told, took


WAYS = {
    "sendto": lambda c, to: said(c.sendto, MESSAGE, socket.MSG_FASTOPEN, to),
    "sendmsg": lambda c, to: said(c.sendmsg, [MESSAGE[:300], MESSAGE[300:]], [], socket.MSG_FASTOPEN, to),
    "sendmmsg": sendmmsg,
    "connect": connect_and_send,
}


def echo(listener):
    while True:
        try:
            s, _ = listener.accept()
        except OSError:
            return
        with s:
            try:
                while data := s.recv(65536):
                    s.sendall(data)
            except OSError:
                pass


def exactly(c, n):
    got = b""
    while len(got) < n:
        select.select([c], [], [], 10)
        more = c.recv(n - len(got))
        if not more:
            sys.exit("the end")
        got += more
    return got


def live(c, address, first):
    """The rest of the life of a connection that has begun: False where there is none."""
    global sent
    took = first[1] if isinstance(first, tuple) else first
    if took == "EINPROGRESS":
        select.select([], [c], [], 5)
        took = said(c.send, MESSAGE)
        # Where TCP is excluded the connection is told before the peer has attached
        # (docs/limits.md).
        while took == "EAGAIN" and sys.argv[1:]:
            select.select([], [c], [], 5)
            took = said(c.send, MESSAGE)
        print("  then", took)
    if took in ("1 of 700", "2 of 700", 700):
        n = 700 * int(str(took)[0]) if took != 700 else 700
    else:
        return False
    if exactly(c, n) != MESSAGE * (n // 700):
        sys.exit("other bytes")
    for i in range(ROUNDS):
        message = bytes([i]) * 1000
        c.sendall(message)
        if exactly(c, 1000) != message:
            sys.exit("other bytes")
    sent += 2 * (n + ROUNDS * 1000)
    # If a connection was made without waiting, and the program has not asked about it, the kernel
    # sends once more.
    again = said(c.sendto, MESSAGE, socket.MSG_FASTOPEN, address)
    if again == 700:
        sent_to(exactly(c, 700))
    more = said(c.sendto, MESSAGE, socket.MSG_FASTOPEN, address), said(c.connect, address)
    if not sys.argv[1:]:
        print("  again", again, *more)
        print("  option", said(c.getsockopt, socket.IPPROTO_TCP, FASTOPEN_CONNECT))
    print("  error", c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    return True


def refused(first):
    """A refusal may come at once or later."""
    return "ECONNREFUSED" if first in ("EINPROGRESS", 700) else first


def main():
    global sent
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((host, 0))
        said(listener.setsockopt, socket.IPPROTO_TCP, FASTOPEN, 16)
        listener.listen()
        address = listener.getsockname()[:2]
        server = threading.Thread(target=echo, args=(listener,))
        server.start()
        nobody = socket.socket(family, socket.SOCK_STREAM)
        nobody.bind((host, 0))
        for name, way in WAYS.items():
            for blocks in (True, False, True):
                with socket.socket(family, socket.SOCK_STREAM) as c:
                    c.setblocking(blocks)
                    first = said(way, c, address)
                    print(family.name, name, "blocking" if blocks else "non-blocking", first)
                    if not live(c, address, first):
                        print("  no connection; later", said(c.connect, address) in (None, "EINPROGRESS"))
                with socket.socket(family, socket.SOCK_STREAM) as c:
                    c.setblocking(blocks)
                    first = said(way, c, nobody.getsockname()[:2])
                    took = first[1] if isinstance(first, tuple) else first
                    if took in ("1 of 700", "2 of 700", 700):
                        # TCP took them, for no reader.
                        sent += 700 * (2 if took == "2 of 700" else 1)
                    if name == "connect":
                        first = "ECONNREFUSED" if isinstance(first, tuple) else first
                    print(family.name, name, "nobody", refused(first))
                    if first in ("EINPROGRESS", 700):
                        select.select([c], [], [], 5)
                        print("  later", c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                    # The same socket once more, by the ordinary way.
                    c.setblocking(True)
                    for _ in range(3):
                        if said(c.connect, address) in (None, "EISCONN"):
                            break
                    c.sendall(MESSAGE)
                    sent_to(exactly(c, 700))
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    print("sent", sent)


def sent_to(data):
    global sent
    if data != MESSAGE:
        sys.exit("other bytes")
    sent += 2 * len(data)


main()
