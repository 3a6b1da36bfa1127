"""Request and answer of 64 bytes between two processes, blocking: `rounds.py SECONDS`.

Prints `rate N p50 NS p99 NS`: rounds a second, and what one takes in nanoseconds. It knows no library.
"""

import os
import socket
import sys
import time

SIZE = 64


def receive(s):
    left = SIZE
    while left:
        got = s.recv(left)
        if not got:
            return False
        left -= len(got)
    return True


def serve(listener):
    s, _ = listener.accept()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer = b"a" * SIZE
    while receive(s):
        s.sendall(answer)


def ask(address, seconds):
    s = socket.create_connection(address)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    question, took = b"q" * SIZE, []
    began = now = time.perf_counter_ns()
    while now - began < seconds * 1e9:
        s.sendall(question)
        if not receive(s):
            sys.exit("the server is gone")
        before, now = now, time.perf_counter_ns()
        took.append(now - before)
    s.close()
    return len(took) / ((now - began) / 1e9), sorted(took)


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        serve(listener)
        sys.exit(0)
    address = listener.getsockname()
    listener.close()
    rate, took = ask(address, float(sys.argv[1]))
    if os.waitpid(pid, 0)[1]:
        sys.exit("the server failed")
    print(f"rate {rate:.0f} p50 {took[len(took) // 2]} p99 {took[len(took) * 99 // 100]}")


main()
