"""A hostile process in the directory where ends of different network namespaces meet.

    meet.py DIRECTORY WHAT...    WHAT: any of flood, squat, visit, remove

flood: a thousand names that look right, with nobody behind, and links, pipes and files. squat:
a hundred right names, behind which somebody answers, with what others said to him. visit: calls at
each name that appears there, says what a visitor would, and what he has heard. remove: takes names
away, if he may. Says at SIGTERM what came of it: `told` is what nobody should have told.
"""
import os
import random
import selectors
import signal
import socket
import sys
import time

import knock

directory, what = sys.argv[1], sys.argv[2:]
counts = {"visits": 0, "visitors": 0, "told": 0, "removed": 0}
mine = set()


def a_name(bucket):
    """As meet/names.rs makes them."""
    mark = random.choice(".+")
    port = random.randrange(32768, 61000)
    version, rest = knock.LAYOUT_VERSION, random.getrandbits(64)
    return f"rs{version:04x}-{bucket:02x}{mark}{port:04x}-{rest:016x}"


def bind(bucket, backlog):
    name = a_name(bucket)
    mine.add(name)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind(f"{directory}/{name}")
    os.chmod(f"{directory}/{name}", 0o777)
    if backlog is not None:
        s.listen(backlog)
    return s


def flood():
    for i in range(1000):
        bind(i % 256, None).close()
        path = f"{directory}/{a_name(i % 256)}"
        mine.add(os.path.basename(path))
        if i % 10 == 0:
            os.symlink(random.choice(["/etc/passwd", directory, "/dev/zero"]), path)
        elif i % 10 == 1:
            os.mkfifo(path, 0o666)
        elif i % 10 == 2:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))


def hear(s, visitor):
    """What somebody says, and what we say to that; true where he is to be heard again."""
    try:
        data, fds, _, _ = socket.recv_fds(s, 512, 4)
    except BlockingIOError:
        return True
    except OSError:
        return False
    for fd in fds:
        os.close(fd)
    # A welcome, or the memory: that is for the right end alone.
    counts["told"] += data.startswith(knock.WELCOME)
    if not data:
        return False
    if len(data) >= knock.PROOF:
        knock.heard.append(data[-knock.PROOF:])
        del knock.heard[:-64]
    try:
        s.send((knock.knock_message() if visitor else b"") + knock.proof())
    except OSError:
        return False
    return random.random() < 0.7


def squat(ready):
    for i in range(100):
        s = bind(random.randrange(256), 8)
        s.setblocking(False)
        ready.register(s, selectors.EVENT_READ, "door")


def visit(ready, seen):
    for name in os.listdir(directory):
        if name in seen or name in mine or not name.startswith("rs"):
            continue
        seen.add(name)
        for _ in range(2):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.setblocking(False)
            try:
                s.connect(f"{directory}/{name}")
                s.send(knock.knock_message() + (knock.proof() if random.random() < 0.5 else b""))
                ready.register(s, selectors.EVENT_READ, "visit")
                counts["visits"] += 1
            except OSError:
                s.close()


def remove():
    for name in os.listdir(directory):
        if name not in mine:
            try:
                os.unlink(f"{directory}/{name}")
                counts["removed"] += 1
            except OSError:
                pass


def end(*_):
    print(" ".join(f"{k} {v}" for k, v in counts.items()), flush=True)
    os._exit(0)


def main():
    signal.signal(signal.SIGTERM, end)
    ready, seen = selectors.DefaultSelector(), set()
    if "flood" in what:
        flood()
    if "squat" in what:
        squat(ready)
    print("there", flush=True)
    while True:
        if "visit" in what:
            visit(ready, seen)
        if "remove" in what:
            remove()
        if not ready.get_map():
            time.sleep(0.002)
            continue
        for key, _ in ready.select(0.002):
            if key.data == "door":
                try:
                    c, _ = key.fileobj.accept()
                except OSError:
                    continue
                c.setblocking(False)
                counts["visitors"] += 1
                ready.register(c, selectors.EVENT_READ, "visitor")
            elif not hear(key.fileobj, key.data == "visit"):
                ready.unregister(key.fileobj)
                key.fileobj.close()


main()
