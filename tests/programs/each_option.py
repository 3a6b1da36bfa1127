"""Every socket option that this kernel takes, on connections in the middle of their life, over IPv4
and IPv6. Each is set to a new value, to the value that it has, and to one that the kernel refuses.
Prints the options after which the bytes go by TCP, as `FAMILY LEVEL NUMBER HOW`, and at the end how
many it tried. TCP itself says how many bytes it has carried."""
import errno
import socket
import struct
import sys

LEVELS = (socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6)
HIGHEST = 90
TCP_INFO, TCP_REPAIR, TCP_CORK = 11, 19, 3
# Values that are more than an integer, or that leave TCP alive.
EMPTY_HEADER = struct.pack("BBBBBBBB", 0, 0, 1, 4, 0, 0, 0, 0)
SIGNED = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton("192.0.2.1")).ljust(128, b"\0")
SIGNED_6 = struct.pack("=HHI16s", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, "2001:db8::1")).ljust(128, b"\0")
NEW = {
    (1, 13): struct.pack("ii", 1, 3), (1, 20): struct.pack("ll", 9, 0), (1, 21): struct.pack("ll", 9, 0),
    (1, 25): b"lo", (1, 42): struct.pack("i", 0), (1, 47): struct.pack("I", 1 << 30), (1, 61): struct.pack("iI", 1, 0),
    (1, 66): struct.pack("ll", 9, 0), (1, 67): struct.pack("ll", 9, 0), (1, 80): b"\0" * 16,
    (6, 2): struct.pack("i", 1000), (6, 10): struct.pack("i", 65536), (6, 13): b"reno", (6, 33): b"\1" * 16,
    (0, 4): b"\1\1\1\1", (0, 50): struct.pack("!I", 1), (0, 51): struct.pack("=I", 0),
    (41, 6): b"", (41, 24): struct.pack("i", 1400), (41, 50): b"\0" * 20, (41, 54): EMPTY_HEADER,
    (41, 76): struct.pack("!I", 1), (41, 72): struct.pack("i", 2),
}


def pair(family):
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen()
    c = socket.create_connection(listener.getsockname()[:2])
    s, _ = listener.accept()
    listener.close()
    return c, s


def carried(s):
    """Bytes that TCP has taken from its peer's stream, in and out."""
    info = s.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
    return sum(struct.unpack_from("QQ", info, 120))


def echo(c, s, times):
    for i in range(times):
        for a, b in ((c, s), (s, c)):
            message = bytes([i % 251]) * 1000
            a.sendall(message)
            got = b""
            while len(got) < len(message):
                got += b.recv(len(message) - len(got)) or sys.exit("the end")
            if got != message:
                sys.exit("other bytes")


def new_value(family, level, number):
    if (level, number) in ((6, 14), (6, 32)):
        address = SIGNED_6 if family == socket.AF_INET6 else SIGNED
        return address + struct.pack("=BBHI", 1, 32, 4, 0) + b"key!".ljust(80, b"\0") if number == 32 else address + struct.pack("=BBHI", 0, 0, 4, 0) + b"key!".ljust(80, b"\0")
    return NEW.get((level, number), struct.pack("i", 1))


def set_as(s, family, level, number, how):
    """Whether the kernel took it."""
    try:
        if how == "same":
            value = s.getsockopt(level, number, 31)
        else:
            value = new_value(family, level, number) if how == "new" else b"\xff\xff\xff"
        s.setsockopt(level, number, value)
    except OSError as e:
        # An option that the kernel has not got is one that it refuses: of those one is enough.
        return None if e.errno in (errno.ENOPROTOOPT, errno.EPERM) and how != "refused" else False
    if (level, number) == (6, TCP_REPAIR):
        s.setsockopt(level, number, -1)
    if (level, number) == (6, TCP_CORK):
        s.setsockopt(level, number, 0)
    return True


def goes_by_tcp(family, level, number, how, of):
    """Whether TCP has the bytes after the call; None where there is no such option, or the call is
    another case's."""
    c, s = pair(family)
    with c, s:
        echo(c, s, 40)
        before = carried(c)
        end = c if of == "connecting" else s
        took = set_as(end, family, level, number, how)
        if took is None or took != (how != "refused") and how != "same":
            return None
        echo(c, s, 40)
        return carried(c) - before > 10000


tried = 0
for family in (socket.AF_INET, socket.AF_INET6):
    for level in LEVELS:
        for number in range(1, HIGHEST):
            for how in ("new", "same", "refused"):
                if how == "same" and (level, number) == (6, 35):
                    continue  # to ask for it is to receive
                if how == "new" and level == 41 and number in (55, 59):
                    continue  # packets with such a header do not come through the loopback device
                of = "connecting" if number % 2 else "accepting"
                by_tcp = goes_by_tcp(family, level, number, how, of)
                tried += by_tcp is not None
                if by_tcp:
                    print(family.name, level, number, how)
print("tried", tried)
