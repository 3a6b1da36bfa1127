"""Many connections at once: `hold|serve ADDRESS PORT COUNT`, `http ADDRESS PORT COUNT ROUNDS BODY`,
`redis ADDRESS PORT COUNT ROUNDS`, `keep HTTP_PORT NODE_PORT REDIS_PORT READY`.

http and redis: COUNT connections, all open, ROUNDS requests on each, every answer compared. serve
and hold: COUNT idle ones, the server with all of them in one epoll object. A few speak from time to
time, and only they may be heard. In the end all are closed, and the server says how much it holds
then, before, after the first COUNT and after as many again. keep: five connections to each of three
servers that have spoken and say no more, until SIGINT. The file READY appears when they are open.
"""

import os
import random
import resource
import select
import selectors
import socket
import sys
import time

role, address = sys.argv[1], sys.argv[2]
port, count, rounds = (int(n) if n.isdigit() else 0 for n in (sys.argv[3:6] + ["1"])[:3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def held():
    """Descriptors, and kilobytes of memory that is not a file's."""
    with open("/proc/self/smaps_rollup") as f:
        rss = {line.split()[0]: int(line.split()[1]) for line in f if line.split()[-1] == "kB"}
    return len(os.listdir("/proc/self/fd")), rss["Rss:"]


def answers(ask, is_whole):
    """ROUNDS times on each of COUNT connections at once."""
    select_ = selectors.DefaultSelector()
    for n in range(count):
        s = socket.create_connection((address, port), timeout=30)
        s.setblocking(False)
        select_.register(s, selectors.EVENT_READ, [n, 0, b""])
    for key in list(select_.get_map().values()):
        key.fileobj.send(ask(key.data[0], 0))
    done = 0
    while done < count:
        for key, _ in select_.select(30) or sys.exit("no answer for 30 s"):
            n, i, text = key.data
            part = key.fileobj.recv(65536)
            if not part:
                sys.exit("connection %d ended after %d answers" % (n, i))
            text += part
            if is_whole(n, i, text):
                text, i = b"", i + 1
                if i == rounds:
                    done += 1
                else:
                    key.fileobj.send(ask(n, i))
            key.data[1:] = i, text
    print("%d connections, %d answers, all right" % (count, count * rounds))


def http():
    body = open(sys.argv[6], "rb").read()

    def is_whole(_n, _i, text):
        head, found, rest = text.partition(b"\r\n\r\n")
        if not found or len(rest) < len(body):
            return False
        if not head.startswith(b"HTTP/1.1 200 ") or rest != body:
            sys.exit("another answer: %r" % text[:100])
        return True

    answers(lambda n, i: b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n", is_whole)


def redis():
    def value(n, i):
        return b"%d:%d:" % (n, i) + b"v" * (n % 700)

    def ask(n, i):
        v = value(n, i)
        return b"*3\r\n$3\r\nset\r\n$%d\r\nk%d\r\n$%d\r\n%b\r\n*2\r\n$3\r\nget\r\n$%d\r\nk%d\r\n" % (
            len(str(n)) + 1, n, len(v), v, len(str(n)) + 1, n)

    def is_whole(n, i, text):
        v = value(n, i)
        want = b"+OK\r\n$%d\r\n%b\r\n" % (len(v), v)
        if not want.startswith(text):
            sys.exit("another answer: %r" % text[:100])
        return text == want

    answers(ask, is_whole)


def serve():
    listener = socket.create_server((address, port), backlog=4096)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    open_ones, ended, wrong, begun, after = {}, 0, 0, held(), []
    while ended < 2 * count:
        for fd, events in poll.poll(60) or sys.exit("nothing for 60 s, %d open" % len(open_ones)):
            if fd == listener.fileno():
                try:
                    while True:
                        s, _ = listener.accept()
                        s.setblocking(False)
                        open_ones[s.fileno()] = s
                        poll.register(s, select.EPOLLIN)
                except BlockingIOError:
                    continue
            try:
                got = open_ones[fd].recv(100000)
            except BlockingIOError:
                wrong += 1
                continue
            if got:
                while got:
                    got = got[open_ones[fd].send(got):]
            else:
                open_ones.pop(fd).close()
                ended += 1
                if ended % count == 0:
                    after += held()
    poll.close()
    print("%d ended, %d wrong events" % (ended, wrong))
    print("held", *begun, *after)


def hold():
    rnd = random.Random(8)
    all_of_them = [socket.create_connection((address, port), timeout=60) for _ in range(count)]
    # A few speak: enough of them so much that they leave TCP.
    talkers = rnd.sample(all_of_them, 40)
    for _ in range(20):
        for s in talkers:
            data = rnd.randbytes(rnd.choice((1, 3000)))
            s.sendall(data)
            got = b""
            while len(got) < len(data):
                got += s.recv(65536)
            assert got == data
    for s in rnd.sample(all_of_them, 200):
        s.sendall(b"here")
        assert s.recv(100) == b"here"
    for s in all_of_them:
        s.close()
    print("%d held, all bytes as sent" % count)


def keep():
    kept = []
    asks = (b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n", 1000), (b"GET /bytes/1000 HTTP/1.1\r\nHost: x\r\n\r\n", 1000), (b"ping\r\n", 7)
    for n, (ask, least) in zip(sys.argv[2:5], asks):
        for _ in range(5):
            s = socket.create_connection(("127.0.0.1", int(n)), timeout=30)
            kept.append(s)
            for _ in range(40):
                s.sendall(ask)
                got = 0
                while got < least:
                    got += len(s.recv(65536))
    open(sys.argv[5], "w").close()
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        pass


{"http": http, "redis": redis, "serve": serve, "hold": hold, "keep": keep}[role]()
