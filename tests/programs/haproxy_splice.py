"""Both ends of haproxy_splice.sh: a small HTTP server, each connection in a process of its own, and
a client that counts every byte.

  haproxy_splice.py server PORT         serves until it is ended
  haproxy_splice.py rounds PORT N       N rounds of 40 small answers and a large one that ends in
                                        close
  haproxy_splice.py uploads PORT N      N bodies up
  haproxy_splice.py broken PORT HOW N   N answers whose server breaks off in the middle: kill, exit,
                                        reset, stop
  haproxy_splice.py spliced SOCKET      prints how many bytes HAProxy says that it has spliced
  haproxy_splice.py files DIRECTORY     writes what the server serves, for another server
"""

import os
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import time

SMALL, BIG, HALF = 1000, 1500000, 700000
BODY = random.Random(5).randbytes(BIG)
FILES = {"/small": BODY[:SMALL], "/big": BODY}


class Reader:
    """Heads and bodies from one connection."""

    def __init__(self, s):
        self.s, self.held = s, b""

    def more(self):
        got = self.s.recv(65536)
        self.held += got
        return len(got)

    def head(self):
        while b"\r\n\r\n" not in self.held:
            if not self.more():
                return None
        head, self.held = self.held.split(b"\r\n\r\n", 1)
        return head.decode()

    def body(self, n):
        """As many of n bytes as there are."""
        parts, left = [], n
        while left:
            if not self.held and not self.more():
                break
            parts.append(self.held[:left])
            self.held = self.held[left:]
            left -= len(parts[-1])
        return b"".join(parts)


def length(head):
    return int(re.search(r"(?i)content-length: *(\d+)", head)[1])


def answer(s, body, closes=False, n=None):
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n" + ("Connection: close\r\n" if closes else "") + "\r\n"
    s.sendall(head.encode() + (body if n is None else body[:n]))


def serve(s):
    r = Reader(s)
    while head := r.head():
        path = head.split()[1]
        if head.startswith("POST"):
            good = r.body(length(head)) == BODY
            answer(s, b"good" if good else b"bad!")
        elif path in FILES:
            answer(s, FILES[path], path == "/big")
            if path == "/big":
                s.shutdown(socket.SHUT_WR)
                # What the other end still sends, until it closes too.
                while s.recv(4096):
                    pass
                return
        else:
            answer(s, BODY, False, HALF)
            if path.startswith("/reset/"):
                # All of it is the receiver's before the reset: it says so by that file.
                while not os.path.exists(path[len("/reset") :]):
                    time.sleep(0.01)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
                return
            if path == "/exit":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL if path == "/kill" else signal.SIGSTOP)


def server(port):
    # Those that have not been reaped: the numbers of others may be other processes' by now.
    children = set()

    def end(*_):
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    while True:
        s, _ = listener.accept()
        while children and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            children.discard(ended)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            listener.close()
            try:
                serve(s)
            except ConnectionError:
                pass
            sys.exit(0)
        s.close()
        children.add(pid)


def dial(port):
    s = socket.create_connection(("127.0.0.1", int(port)))
    s.settimeout(20)
    return s


def ask(s, r, path):
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head = r.head()
    if head is None or " 200 " not in head.split("\r\n")[0]:
        return None, -1
    return head, length(head)


def rounds(port, n):
    bad = 0
    for i in range(int(n)):
        s = dial(port)
        r = Reader(s)
        for path in ["/small"] * 40 + ["/big"]:
            head, want = ask(s, r, path)
            got = r.body(want) if head else b""
            if got != FILES[path]:
                bad += 1
                print(f"round {i}: {path} has {len(got)} of {want} bytes")
                break
        s.close()
    print(f"{bad} of {n} cut short")
    return bad


def uploads(port, n):
    bad = 0
    s = dial(port)
    r = Reader(s)
    for i in range(int(n)):
        s.sendall(f"POST /sink HTTP/1.1\r\nHost: here\r\nContent-Length: {BIG}\r\n\r\n".encode() + BODY)
        head = r.head()
        if head is None or r.body(length(head)) != b"good":
            bad += 1
            break
    print(f"{bad} of {n} bad")
    return bad


def broken(port, how, n):
    """Counts the answers of which less is here than the server had sent."""
    bad = 0
    for i in range(int(n)):
        s = dial(port)
        r = Reader(s)
        # Long enough in use to have left TCP on both sides of the proxy.
        for _ in range(40):
            head, want = ask(s, r, "/small")
            if not head or r.body(want) != FILES["/small"]:
                print(f"{how} {i}: a small answer is wrong")
                return 1
        here = tempfile.mktemp()
        head, want = ask(s, r, "/" + how + here if how == "reset" else "/" + how)
        if how == "stop":
            got = r.body(HALF) if head else b""
        else:
            try:
                got = b""
                if head and how == "reset":
                    got = r.body(HALF)
                    open(here, "x").close()
                if head:
                    got += r.body(want - len(got))
            except ConnectionError as e:
                got = b""
                print(f"{how} {i}: {e}")
        if got != BODY[:HALF]:
            bad += 1
            print(f"{how} {i}: {len(got)} of {HALF} bytes")
        s.close()
        if os.path.exists(here):
            os.unlink(here)
    print(f"{bad} of {n} cut short")
    return bad


def spliced(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.sendall(b"show info\n")
    text = b""
    while got := s.recv(65536):
        text += got
    print(re.search(r"Splic\w*: *(\d+)", text.decode())[1])
    return 0


def files(directory):
    for path, body in FILES.items():
        with open(directory + path, "wb") as f:
            f.write(body)
    return 0


if __name__ == "__main__":
    commands = (server, rounds, uploads, broken, spliced, files)
    sys.exit(1 if {f.__name__: f for f in commands}[sys.argv[1]](*sys.argv[2:]) else 0)
