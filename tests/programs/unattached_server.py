"""A server of clients that may not use TCP: `unattached_server.py HOW PORT`.

`keep` accepts and says nothing, `never` does not accept. `refused` asks for what only TCP can do,
is told that it cannot have it, and closes. `refused-exit` does the same, and ends instead. `stops`
stands still for eight seconds as soon as it has met the client, then sends a byte."""
import os
import select
import signal
import socket
import sys
import time

how, port = sys.argv[1], int(sys.argv[2])
SO_TIMESTAMPING = 37
HARDWARE = 1 << 2 | 1 << 6

listener = socket.create_server(("127.0.0.1", port))
kept = []


def refuse(c):
    c.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, HARDWARE)
    try:
        c.send(b"x")
        print("sent", flush=True)
    except ConnectionRefusedError:
        print("refused", flush=True)
    # The client is to wait for something.
    time.sleep(0.5)


def stop(c):
    # Takes the first step, and no more: by then the client has taken its own, which cannot be seen
    # from here.
    time.sleep(0.5)
    select.select([c], [], [], 0)
    if os.fork() == 0:
        time.sleep(8)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.wait()
    c.send(b"x")


while how == "never":
    time.sleep(60)
while True:
    c = listener.accept()[0]
    if how.startswith("refused"):
        refuse(c)
        if how == "refused-exit":
            os._exit(0)
        c.close()
    elif how == "stops":
        stop(c)
        kept.append(c)
    else:
        kept.append(c)
