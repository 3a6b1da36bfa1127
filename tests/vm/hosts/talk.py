"""What the suites of two guests talk with, preloaded or not: `talk.py ROLE ...`.

    serve HOST PORT              a process for each connection; answers orders, one line each
    answer HOST PORT             one process, one connection at a time: short answers to short
                                 questions
    pair HOST PORT               both send at once, and half a close
    back HOST PORT how           while it sends: an `option` that only TCP can honour, or `splice`;
                                 then the peer
    whole HOST PORT how BYTES    a body whose sender ends right after its last write, by `exit` or
                                 `_exit`
    fetch HOST PORT PATH TIMES   HTTP bodies on connections that two workers hold, two each
    time HOST PORT,... CONNECTIONS:ROUNDS...
                                 medians of connecting and asking so often, in microseconds: for
                                 each shape those of all ports, which take turns
    user HOST PORT [again]       both become an ordinary user: what stands goes on; `again`: and
                                 what follows attaches
    once HOST PORT               serves one connection
    hold HOST PORT how           `receive` or `send` until the peer is gone; prints the error and
                                 the seconds

Bytes are a function of their number and compared by their receiver. An end that is preloaded need
not know. It waits until TCP carries nothing more (`warm`), so that what follows goes another way.
Errors end the program.
"""
import errno
import hashlib
import os
import signal
import socket
import struct
import sys
import threading
import time

BLOCK = 65536
SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_SCHED = 37, 1 << 8


def body(n):
    block = hashlib.shake_128(b"a body").digest(65521)
    return (block * (n // len(block) + 1))[:n]


def exactly(s, n):
    """The next n bytes: recv with MSG_WAITALL would be one call, which no program makes."""
    parts = []
    while n > 0:
        part = s.recv(min(n, BLOCK))
        if not part:
            raise SystemExit(f"the stream ended {n} bytes early")
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def line(s):
    got = b""
    while not got.endswith(b"\n"):
        byte = s.recv(1)
        if not byte:
            return None
        got += byte
    return got.decode().split()


def order(s, *words):
    s.sendall((" ".join(map(str, words)) + "\n").encode())


def same(got, want, what):
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise SystemExit(f"{what}: {len(got)} of {len(want)} bytes, other at {at}")


def carried_by_tcp(s):
    """Bytes that the kernel's TCP has carried in both directions: acknowledged, received."""
    return struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 120)


def warm(s, seconds=30):
    """Exchanges until TCP carries nothing more; whether it came to that."""
    end = time.monotonic() + seconds
    data = body(4096)
    quiet = 0
    while quiet < 3 and time.monotonic() < end:
        before = carried_by_tcp(s)
        order(s, "echo", len(data))
        s.sendall(data)
        same(exactly(s, len(data)), data, "echo")
        quiet = quiet + 1 if carried_by_tcp(s) == before else 0
    return quiet == 3


def connect(host, port):
    return socket.create_connection((host, int(port)), 60)


def splice(s, data):
    """Sends through a pipe."""
    s.settimeout(None)
    r, w = os.pipe()
    while data:
        n = os.write(w, data[:4096])
        data = data[n:]
        while n:
            n -= os.splice(r, s.fileno(), n)


def leave_tcp_alone(s, how, data):
    """Does what only TCP can, or what a device does as well, then sends."""
    if how == "option":
        s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_SCHED)
        s.sendall(data)
    else:
        splice(s, data)


def become_user():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


# ---------------------------------------------------------------- servers


def listener(host, port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, int(port)))
    s.listen(64)
    return s


def obey(s):
    while words := line(s):
        what, n = words[0], int(words[1])
        if what == "echo":
            s.sendall(exactly(s, n))
        elif what == "send":
            s.sendall(body(n))
        elif what == "both":
            feeder = threading.Thread(target=s.sendall, args=(body(n),))
            feeder.start()
            same(exactly(s, n), body(n), "both")
            feeder.join()
            s.sendall(b"same")
        elif what == "sink":
            got = hashlib.sha256()
            while part := s.recv(BLOCK):
                got.update(part)
            s.sendall(got.digest())
        elif what == "back":
            s.sendall(body(n))
            leave_tcp_alone(s, words[2], body(n))
        elif what == "leave":
            s.sendall(body(n))
            if words[2] == "_exit":
                os._exit(0)
            return
        elif what == "user":
            become_user()
            s.sendall(b"done")
        elif what == "silent":
            time.sleep(1000)


def serve(host, port):
    s = listener(host, port)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = s.accept()
        if os.fork() == 0:
            s.close()
            obey(connection)
            return
        connection.close()


def once(host, port):
    s = listener(host, port)
    connection, _ = s.accept()
    s.close()
    obey(connection)


def answer(host, port):
    s = listener(host, port)
    data = body(1000)
    while True:
        connection, _ = s.accept()
        # A question may come in pieces: the end of a buffer is anywhere.
        asked = 0
        while part := connection.recv(100 - asked):
            asked += len(part)
            if asked == 100:
                connection.sendall(data)
                asked = 0
        connection.close()


# ---------------------------------------------------------------- clients


def pair(host, port):
    n = 3_000_000
    s = connect(host, port)
    warmed = warm(s)
    order(s, "both", n)
    feeder = threading.Thread(target=s.sendall, args=(body(n),))
    feeder.start()
    same(exactly(s, n), body(n), "both")
    feeder.join()
    same(exactly(s, 4), b"same", "verdict")
    order(s, "sink", 0)
    s.sendall(body(n))
    s.shutdown(socket.SHUT_WR)
    same(exactly(s, 32), hashlib.sha256(body(n)).digest(), "digest after half a close")
    same(s.recv(1), b"", "end")
    print("warm" if warmed else "on tcp")


def back(host, port, how):
    n = 1_000_000
    s = connect(host, port)
    warmed = warm(s)
    order(s, "sink", 0)
    s.sendall(body(n))
    leave_tcp_alone(s, how, body(n))
    s.shutdown(socket.SHUT_WR)
    same(exactly(s, 32), hashlib.sha256(body(n) * 2).digest(), "digest")
    # The other end, likewise.
    s = connect(host, port)
    warmed = warm(s) and warmed
    order(s, "back", n, how)
    same(exactly(s, 2 * n), body(n) * 2, "what the peer sent")
    # And it goes on in both directions.
    order(s, "echo", 5)
    s.sendall(b"hello")
    same(exactly(s, 5), b"hello", "echo after all")
    print("warm" if warmed else "on tcp")


def whole(host, port, how, n):
    n = int(n)
    s = connect(host, port)
    warmed = warm(s)
    order(s, "leave", n, how)
    # The sender is through, and waits for no process but us.
    time.sleep(1)
    same(exactly(s, n), body(n), "body")
    same(s.recv(1), b"", "end")
    print("warm" if warmed else "on tcp")


def fetch(host, port, path, times):
    import http.client  # takes a second to load

    held = {}
    for _ in range(60):
        c = http.client.HTTPConnection(host, int(port), timeout=60)
        c.request("GET", "/who")
        who = c.getresponse()
        who.read()
        mine = held.setdefault(who.getheader("X-Worker"), [])
        mine.append(c) if len(mine) < 2 else c.close()
        if [len(m) for m in held.values()] == [2, 2]:
            break
    else:
        raise SystemExit(f"connections are held by {held.keys()}")
    connections = [c for m in held.values() for c in m]
    digests = set()

    def work(c):
        for _ in range(int(times)):
            c.request("GET", path)
            digests.add(hashlib.sha256(c.getresponse().read()).hexdigest())

    threads = [threading.Thread(target=work, args=(c,)) for c in connections]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(*digests)


def time_(host, ports, *shapes):
    question = body(100)
    medians = []
    for shape in shapes:
        connections, rounds = map(int, shape.split(":"))
        took = {port: [] for port in ports.split(",")}
        for _ in range(connections):
            for port, times in took.items():
                began = time.monotonic()
                with connect(host, port) as s:
                    for _ in range(rounds):
                        s.sendall(question)
                        exactly(s, 1000)
                times.append(time.monotonic() - began)
        medians += [round(sorted(times)[len(times) // 2] * 1e6) for times in took.values()]
    print(*medians)


def user(host, port, again=None):
    n = 1_000_000
    s = connect(host, port)
    warmed = warm(s)
    order(s, "user", 0)
    same(exactly(s, 4), b"done", "the peer has changed")
    # They in time, we in the middle of a message.
    order(s, "sink", 0)
    s.sendall(body(n))
    become_user()
    s.sendall(body(n))
    s.shutdown(socket.SHUT_WR)
    same(exactly(s, 32), hashlib.sha256(body(n) * 2).digest(), "digest")
    same(s.recv(1), b"", "end")
    if again:
        s = connect(host, port)
        warmed = warm(s) and warmed
    print("warm" if warmed else "on tcp")


def hold(host, port, how):
    s = connect(host, port)
    s.settimeout(None)
    warmed = warm(s)
    print("warm" if warmed else "on tcp", flush=True)
    data = body(BLOCK)
    order(s, "silent" if how == "receive" else "sink", 0)
    began = time.monotonic()
    try:
        while True:
            if how == "send":
                s.sendall(data)
            elif not s.recv(1):
                print("end of stream")
                return
            began = time.monotonic()
    except OSError as e:
        print(errno.errorcode[e.errno], round(time.monotonic() - began))


ROLES = {"serve": serve, "answer": answer, "pair": pair, "back": back, "whole": whole, "fetch": fetch, "time": time_, "hold": hold,
         "user": user, "once": once}
try:
    ROLES[sys.argv[1]](*sys.argv[2:])
except KeyboardInterrupt:
    pass
