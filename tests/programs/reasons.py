"""One end of an echo of 1000 bytes at a time: `reasons.py serve HOW`, which prints its port, and
`reasons.py ask HOW PORT`. HOW is what this end does in the middle of the connection's life, or
before it (`first:`). For that the connection goes back to TCP, or stays there. With `rsstat` in the
environment it runs rsstat before it closes, and prints what rsstat says of this process."""
import ctypes
import os
import signal
import socket
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
ROUNDS = 120
SO_TIMESTAMPING, SO_PEEK_OFF, SO_ZEROCOPY, MSG_ZEROCOPY = 37, 42, 60, 0x4000000


def do(how, s):
    if how == "option":
        s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, 64)
    elif how == "peek-off":
        s.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    elif how == "stamps":
        s.setsockopt(socket.SOL_SOCKET, 29, 1)
    elif how == "async":
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        import fcntl
        fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)
    elif how == "zerocopy":
        s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    elif how == "urgent":
        s.send(b"!", socket.MSG_OOB)
    elif how == "sandbox":
        # prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER) of a filter that allows everything
        allow = (ctypes.c_uint64 * 1)(0x7FFF000000000006)
        program = (ctypes.c_uint64 * 2)(1, ctypes.addressof(allow))
        libc.prctl(38, 1, 0, 0, 0)
        libc.prctl(22, 2, program, 0, 0)


def send(how, s, data):
    s.send(data, MSG_ZEROCOPY) if how == "zerocopy" else s.sendall(data)


def exactly(how, s, n):
    got = b""
    while len(got) < n:
        more = s.recvmsg(n - len(got), 100)[0] if how == "stamps" else s.recv(n - len(got))
        if not more:
            return got
        got += more
    return got


def live(how, s, first):
    if how.startswith("first:"):
        how = how[6:]
        do(how, s)
    rounds, middle, done = (1 if how == "short" else ROUNDS), ROUNDS // 2, 0
    while True:
        if first and done < rounds:
            send(how if done > middle else "", s, b"x" * 1000)
        elif first:
            break
        data = exactly(how if done > middle else "", s, 1000)
        if not data:
            break
        if data != b"x" * 1000:
            sys.exit("other bytes")
        if not first:
            send(how if done > middle else "", s, data)
        done += 1
        if done == middle:
            do(how, s)
    if "RSSTAT" in os.environ:
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        print(subprocess.run([os.environ["RSSTAT"], "-p", str(os.getpid())], env=environment, capture_output=True, text=True).stdout)
    s.close()


where, how = sys.argv[1:3]
if where == "serve":
    family = socket.AF_INET6 if os.environ.get("SIX") else socket.AF_INET
    listener = socket.create_server(("::1" if os.environ.get("SIX") else "127.0.0.1", 0), family=family)
    if how == "syn":
        # The kernel keeps SYNs, for the program.
        listener.setsockopt(socket.IPPROTO_TCP, 27, 1)
    print(listener.getsockname()[1], flush=True)
    s, _ = listener.accept()
    listener.close()
    live(how, s, False)
else:
    live(how, socket.create_connection(("::1" if os.environ.get("SIX") else "127.0.0.1", int(sys.argv[3]))), True)
