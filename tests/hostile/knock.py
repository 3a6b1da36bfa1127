"""Another user of the same host, at the place where two ends of a connection meet.

    knock.py knock PORT        connects to every offer for a connection to PORT, says what an
                               accepting side would say
    knock.py prove PORT        the same, and "proves" it: by rubbish, and by what was heard at other
                               offers
    knock.py squat FROM PORT   binds the names of the offers of connections from FROM, and the
                               hundred ports behind it, to PORT
    knock.py answer FROM PORT  the same, and answers a visitor that comes with such a proof

Says at its first knock that it knocks, and at SIGINT what came of it.
"""
import os
import select
import signal
import socket
import struct
import sys
import time

# The library's, in rsocket-core/src/attach/hello.rs: one that differs meets no process, and the
# test would show nothing.
LAYOUT_VERSION = 6
# A point of the group: the best that a process which knows nothing can say.
POINT = bytes.fromhex("e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76")
WELCOME = struct.pack("=I", 0x72735765)
PROOF = 96
KNOCK = 48
HINT = 64
heard = []


def knock_message():
    """Our version, no flags, some process, an inode and a cookie that might be right, some hint, no
    bell."""
    return struct.pack("=IHHQQIIQQ", 0x72734B6E, LAYOUT_VERSION, 0, 7, 7, 4242, HINT | os.getpid() % 64, 4242, 0)


def proof():
    """By turns a proof of ours and, with our name or theirs, what another process has said."""
    pidfd = os.pidfd_open(os.getpid())
    ours = struct.pack("=QQII", os.fstat(pidfd).st_ino, os.stat("/proc/self/ns/pid").st_ino, os.getpid(), 0)
    os.close(pidfd)
    head = struct.pack("=IHH", 0x72735066, LAYOUT_VERSION, 1)
    if heard and os.urandom(1)[0] % 2:
        said = heard[os.urandom(1)[0] % len(heard)]
        return said if os.urandom(1)[0] % 2 else head + ours + said[32:64] + os.urandom(32)
    return head + ours + POINT + os.urandom(32)


def name(client, server):
    """The name of an offer for a connection over 127.0.0.1: the library's rendezvous::name."""
    address = socket.inet_aton("127.0.0.1") + bytes(12)
    ends = struct.pack(">HH", client, server)
    return b"\0rsockets/" + (struct.pack(">HBI", LAYOUT_VERSION, 4, 0) + address + address + ends).hex().encode()


def knock(port, proves):
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
                s.send(knock_message() + (proof() if proves and os.urandom(1)[0] % 2 else b""))
                waiting[n] = s
                knocks += 1
                if knocks == 1:
                    print("knocking", flush=True)
            except OSError:
                s.close()
        for n, s in list(waiting.items()):
            try:
                data, fds, _, _ = socket.recv_fds(s, 256, 4)
                # Where the kernel cannot be asked a visitor may prove itself: that is no welcome.
                if fds or data.startswith(WELCOME) or data and not proves:
                    welcomes += 1
                if proves and data and not fds:
                    heard.append(data[-PROOF:])
                    s.send(knock_message() + proof())
                    continue
                s.close()
                del waiting[n]
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                del waiting[n]
        time.sleep(0.0005)


def answer(c):
    """Tells a proof to the process that comes; whether that made it say more than its own proof."""
    c.settimeout(2)
    try:
        said, fds, _, _ = socket.recv_fds(c, 256, 4)
        if fds:
            return True
        if len(said) >= PROOF:
            heard.append(said[-PROOF:])
        c.send(proof())
        said, fds, _, _ = socket.recv_fds(c, 256, 4)
        return bool(said or fds)
    except OSError:
        return False


def squat(first, port, answers):
    taken = []
    for p in range(first, first + 100):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.bind(name(p, port))
        s.listen(1)
        s.setblocking(False)
        taken.append(s)

    told = visitors = 0

    def end(*_):
        nonlocal told
        if answers:
            print(f"answered {visitors} told {told}", flush=True)
            os._exit(0)
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
        if not answers:
            signal.pause()
        for s in select.select(taken, [], [])[0]:
            c, _ = s.accept()
            visitors += 1
            told += answer(c)
            c.close()


if __name__ != "__main__":
    pass
elif sys.argv[1] in ("knock", "prove"):
    knock(int(sys.argv[2]), sys.argv[1] == "prove")
else:
    squat(int(sys.argv[2]), int(sys.argv[3]), sys.argv[1] == "answer")
