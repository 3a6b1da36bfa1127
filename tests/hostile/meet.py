"""A hostile process in the directory where ends of different network namespaces meet.

    meet.py DIRECTORY WHAT...    WHAT: any of flood, squat, silent, visit, remove, few

flood: more names that look right than any process looks at, with no process behind, and links,
pipes and files. squat: names of every bucket, and beside each name that appears one that says the
same. Behind them this process answers, with what others said to it. silent: the same, but this
process does not answer. visit: calls at each name that appears there, again and again, and says
what a visitor would, and what it has heard. remove: takes names away, if it may. few: some names,
for a process that is about to be killed. Says at SIGTERM what came of it: `told` is what no process
should have told.
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


def bind(name, backlog):
    mine.add(name)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind(f"{directory}/{name}")
    os.chmod(f"{directory}/{name}", 0o777)
    if backlog is not None:
        s.listen(backlog)
    return s


def flood():
    def another(bucket):
        name = a_name(bucket)
        mine.add(name)
        return f"{directory}/{name}"

    for i in range(1500):
        bind(a_name(i % 256), None).close()
    for i in range(256):
        os.symlink(random.choice(["/etc/passwd", directory, "/dev/zero"]), another(i))
        os.mkfifo(another(i), 0o666)
        os.close(os.open(another(i), os.O_CREAT | os.O_WRONLY, 0o666))


def something(visitor, said=b""):
    """Mostly what the other end would say."""
    odd = random.randrange(8)
    if odd < 3:
        return [said or b"?", said[knock.KNOCK:] or b"?", os.urandom(100 + 60 * odd)][odd]
    if visitor and random.random() < 0.3:
        return knock.knock_message()
    return (knock.knock_message() if visitor else b"") + knock.proof()


def hear(s, visitor):
    """What a process at the other end says, and what we say to that; true where it is to be heard
    again."""
    try:
        data, fds, _, _ = socket.recv_fds(s, 512, 4)
    except BlockingIOError:
        return True
    except OSError:
        return False
    for fd in fds:
        os.close(fd)
    # A welcome, the memory, or a bell: those are for the right end alone.
    counts["told"] += data.startswith(knock.WELCOME) or bool(fds)
    if not data:
        return False
    if len(data) >= knock.PROOF:
        knock.heard.append(data[-knock.PROOF:])
        del knock.heard[:-64]
    try:
        if "silent" not in what:
            s.send(something(visitor, data))
    except OSError:
        return False
    return random.random() < 0.7


def door(ready, name):
    s = bind(name, 8)
    s.setblocking(False)
    ready.register(s, selectors.EVENT_READ, "door")


def squat(ready):
    for i in range(512):
        door(ready, a_name(i % 256))


def theirs():
    return [n for n in os.listdir(directory) if n not in mine and n.startswith("rs")]


def shadow(ready, seen):
    """A name beside each new one, which differs in what is random alone."""
    for name in theirs():
        if name not in seen and len(ready.get_map()) < 900:
            seen.add(name)
            door(ready, f"{name[:-16]}{random.getrandbits(64):016x}")


def visit(ready):
    for name in theirs():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.setblocking(False)
        try:
            s.connect(f"{directory}/{name}")
            s.send(something(True))
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
    squats = "squat" in what or "silent" in what
    if squats:
        squat(ready)
    if "few" in what:
        kept = [bind(a_name(i), 4) for i in range(80)]
    print("there", flush=True)
    while True:
        if squats:
            shadow(ready, seen)
        if "visit" in what:
            visit(ready)
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
