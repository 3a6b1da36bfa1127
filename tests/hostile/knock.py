"""Another user of the same host, at the place where two ends of a connection meet.

    knock.py knock PORT        connects to every offer for a connection to PORT, says what an accepting side would say
    knock.py squat FROM PORT   binds the names of the offers of connections from FROM, and the hundred ports behind it, to PORT

Says at SIGINT what came of it.
"""
import os
import signal
import socket
import struct
import sys
import time

# The library's, in rsocket-core/src/attach/hello.rs: one that differs meets nobody, and the test would show nothing.
LAYOUT_VERSION = 4


def name(client, server):
    """The name of an offer for a connection over 127.0.0.1: the library's rendezvous::name."""
    address = socket.inet_aton("127.0.0.1") + bytes(12)
    ends = struct.pack(">HH", client, server)
    return b"\0rsockets/" + (struct.pack(">HBI", LAYOUT_VERSION, 4, 0) + address + address + ends).hex().encode()


def knock(port):
    """Other programs of this host are left alone."""
    end_of_name = b"%04x" % port
    knocks = welcomes = 0

    def end(*_):
        print(f"knocks {knocks} welcomes {welcomes}", flush=True)
        os._exit(0)

    signal.signal(signal.SIGINT, end)
    print("watching", flush=True)
    waiting = {}
    while True:
        with open("/proc/net/unix", "rb") as f:
            names = [line.split()[-1][1:] for line in f if b"@rsockets/" in line]
        names = [n for n in names if n.endswith(end_of_name)]
        for n in names:
            if n in waiting:
                continue
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.setblocking(False)
            try:
                s.connect(b"\0" + n)
                # Our version, no flags, some process, an inode and a cookie that might be right, no bell.
                s.send(struct.pack("=IHHQQIIQQ", 0x72734B6E, LAYOUT_VERSION, 0, 7, 7, 4242, 0, 4242, 0))
                waiting[n] = s
                knocks += 1
            except OSError:
                s.close()
        for n, s in list(waiting.items()):
            try:
                data, fds, _, _ = socket.recv_fds(s, 256, 4)
                if data or fds:
                    welcomes += 1
                s.close()
                del waiting[n]
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                del waiting[n]
        time.sleep(0.0005)


def squat(first, port):
    taken = []
    for p in range(first, first + 100):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.bind(name(p, port))
        s.listen(1)
        s.setblocking(False)
        taken.append(s)

    def end(*_):
        told = 0
        for s in taken:
            try:
                c, _ = s.accept()
                c.setblocking(False)
                try:
                    told += len(c.recv(256)) > 0
                except OSError:
                    pass
            except OSError:
                pass
        print(f"squatted {len(taken)} told {told}", flush=True)
        os._exit(0)

    signal.signal(signal.SIGINT, end)
    print(f"squatting {len(taken)}", flush=True)
    while True:
        signal.pause()


if sys.argv[1] == "knock":
    knock(int(sys.argv[2]))
else:
    squat(int(sys.argv[2]), int(sys.argv[3]))
