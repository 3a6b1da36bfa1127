"""Ends of one connection that cannot attach, and what is in the way: `squatter.py HOW PORT
SECONDS`.

HOW is what one side does. `serve` accepts one connection and looks at it, again and again, without
blocking. `ask` connects to PORT and does the same. `serve-syn` is `serve` that has the kernel keep
SYNs, for itself. `nobody` accepts connections and leaves them alone. `ask-taken` connects from a
port whose name at the rendezvous it has taken before, and at which it does not listen. Prints how
the looking ended, and after how many seconds.

`squatter.py confined COMMAND...` becomes that program under a filter that forbids AF_NETLINK, as a
service manager's RestrictAddressFamilies does."""
import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time

# What is known of the protocol is there; or beside a copy of this file.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../hostile"))


def confine():
    """socket(AF_NETLINK) answers EAFNOSUPPORT; everything else is let through."""
    filters = [
        (0x20, 0, 0, 0),  # the number
        (0x15, 0, 3, 41 if os.uname().machine == "x86_64" else 198),  # socket
        (0x20, 0, 0, 16),  # its first argument
        (0x15, 0, 1, socket.AF_NETLINK),
        (0x06, 0, 0, 0x00050000 | errno.EAFNOSUPPORT),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *f) for f in filters))
    program = struct.pack("HxxxxxxP", len(filters), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        sys.exit("no filter: %s" % os.strerror(ctypes.get_errno()))


def look(c, seconds):
    """Sends and receives what it can, as a program does that has other things to do, and never
    sleeps for the socket. The first look is a wait of no length, which the library sees. A program
    that finds bytes as often as not cannot be told from one that waits unseen."""
    c.setblocking(False)
    select.select([c], [], [], 0)
    began = time.monotonic()
    told = "EAGAIN"
    while time.monotonic() - began < seconds and told == "EAGAIN":
        for call in (lambda: c.recv(4096), lambda: c.send(b"x")):
            try:
                told = "EAGAIN" if call() else "end"
            except OSError as e:
                told = errno.errorcode[e.errno]
            if told != "EAGAIN":
                break
    return "%s %d" % (told, time.monotonic() - began)


def main():
    how = sys.argv[1]
    if how == "confined":
        confine()
        os.execvp(sys.argv[2], sys.argv[2:])
    port, seconds = int(sys.argv[2]), float(sys.argv[3])
    if how in ("serve", "serve-syn", "nobody"):
        listener = socket.create_server(("127.0.0.1", port))
        if how == "serve-syn":
            listener.setsockopt(socket.IPPROTO_TCP, 27, 1)
        kept = [listener.accept()[0]]
        while how == "nobody":
            kept.append(listener.accept()[0])
        c = kept[0]
    else:
        c = socket.socket()
        if how == "ask-taken":
            c.bind(("127.0.0.1", 0))
            taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            import knock

            taken.bind(knock.name(c.getsockname()[1], port))
        c.connect(("127.0.0.1", port))
    print(look(c, seconds), flush=True)


main()
