"""Request and answer of 64 bytes between two processes: `rounds.py SECONDS
[recv|poll|select|epoll]`.

Both wait in recv, or in that call before each. Prints `rate N p50 NS p99 NS`: rounds a second, and
what one takes in nanoseconds. An end that may not run on the same CPUs as before has failed. It
knows no library.
"""

import os
import select
import socket
import sys
import time

SIZE = 64


def waiter(s, how):
    """A function that waits until something may be received."""
    if how == "select":
        return lambda: select.select([s], [], [])
    if how in ("poll", "epoll"):
        p = getattr(select, how)()
        p.register(s, 1)  # POLLIN, EPOLLIN
        return p.poll
    return lambda: None


def receive(s, wait):
    left = SIZE
    while left:
        wait()
        got = s.recv(left)
        if not got:
            return False
        left -= len(got)
    return True


def serve(listener, how):
    s, _ = listener.accept()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer, wait = b"a" * SIZE, waiter(s, how)
    while receive(s, wait):
        s.sendall(answer)


def ask(address, seconds, how):
    s = socket.create_connection(address)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    question, wait, took = b"q" * SIZE, waiter(s, how), []
    began = now = time.perf_counter_ns()
    while now - began < seconds * 1e9:
        s.sendall(question)
        if not receive(s, wait):
            sys.exit("the server is gone")
        before, now = now, time.perf_counter_ns()
        took.append(now - before)
    s.close()
    return len(took) / ((now - began) / 1e9), sorted(took)


def main():
    how = sys.argv[2] if len(sys.argv) > 2 else "recv"
    listener, cpus = socket.create_server(("127.0.0.1", 0)), os.sched_getaffinity(0)
    pid = os.fork()
    if pid == 0:
        serve(listener, how)
        sys.exit(os.sched_getaffinity(0) != cpus)
    address = listener.getsockname()
    listener.close()
    rate, took = ask(address, float(sys.argv[1]), how)
    if os.waitpid(pid, 0)[1]:
        sys.exit("the server failed")
    if os.sched_getaffinity(0) != cpus:
        sys.exit("the client is bound to other CPUs")
    print(f"rate {rate:.0f} p50 {took[len(took) // 2]} p99 {took[len(took) * 99 // 100]}")


main()
