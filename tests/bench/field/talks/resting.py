"""A thousand connections that have left TCP and say nothing: `resting.py SECONDS [NUMBER]`.

Both ends wait in epoll. Prints `cpu US`: time of processors that the two took together in a second
of rest, in µs.
"""

import os
import resource
import select
import socket
import sys
import time

ENOUGH = 40000  # bytes each way, so that a connection has shown that it lives


def used():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return (u.ru_utime + u.ru_stime) * 1e6


def receive(s, left):
    while left:
        got = len(s.recv(left))
        if not got:
            sys.exit("the other end is gone")
        left -= got


def exchange(s, first):
    """In small parts, so that no sender waits for room."""
    for _ in range(10):
        if first:
            s.sendall(b"x" * (ENOUGH // 10))
        receive(s, ENOUGH // 10)
        if not first:
            s.sendall(b"x" * (ENOUGH // 10))


def rest(all_, seconds):
    waiter = select.epoll()
    for s in all_:
        waiter.register(s, select.EPOLLIN)
    # What is left to do when the last byte is there may take its time; and the first wait arms each
    # member, once.
    if waiter.poll(0.5):
        sys.exit("somebody spoke")
    before = used()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if waiter.poll(left):
            sys.exit("somebody spoke")
    return (used() - before) / seconds


def serve(listener, number, seconds, out):
    all_ = []
    for _ in range(number):
        s, _ = listener.accept()
        all_.append(s)
        exchange(s, False)
    os.write(out, b"%d" % rest(all_, seconds))
    for s in all_:
        s.recv(1)


def main():
    seconds, number = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        serve(listener, number, seconds, tell)
        sys.exit(0)
    all_ = []
    for _ in range(number):
        all_.append(socket.create_connection(listener.getsockname()))
        exchange(all_[-1], True)
    own = rest(all_, seconds)
    theirs = float(os.read(told, 64))
    for s in all_:
        s.close()
    if os.waitpid(pid, 0)[1]:
        sys.exit("the server failed")
    print(f"cpu {own + theirs:.0f}")


main()
