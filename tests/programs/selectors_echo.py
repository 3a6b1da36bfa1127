"""An echo server and its clients, each one thread over one selector: `server|client KIND ADDRESS
PORT`.

KIND is a class of `selectors`: EpollSelector, PollSelector, SelectSelector. Each of twelve clients
sends its own bytes in pieces of many sizes without waiting for the answer. Then it says that it has
sent all (half-close), and compares what comes back until the end. Each holds what it sent and has
not got back yet to a limit, as programs do.
"""

import os
import random
import selectors
import socket
import sys

role, kind, address, port = sys.argv[1], getattr(selectors, sys.argv[2]), sys.argv[3], int(sys.argv[4])
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def server():
    select = kind()
    listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setblocking(False)
    select.register(listener, READ)
    while True:
        for key, events in select.select():
            s = key.fileobj
            if s is listener:
                s, _ = listener.accept()
                s.setblocking(False)
                select.register(s, READ, bytearray())
                continue
            held, ended = key.data, False
            if events & READ:
                got = s.recv(65536)
                held += got
                ended = not got
            if held and events & WRITE:
                del held[: s.send(held[:100000])]
            if ended and not held:
                select.unregister(s)
                s.close()
            elif ended:
                # The rest goes out while nothing more comes in.
                select.unregister(s)
                s.setblocking(True)
                s.sendall(held)
                s.close()
            else:
                select.modify(s, (READ if len(held) < 1 << 20 else 0) | (WRITE if held else 0), held)


def client():
    select, rnd, open_ones = kind(), random.Random(5), 0
    for _ in range(12):
        s = socket.create_connection((address, port))
        s.setblocking(False)
        data = rnd.randbytes(int(os.environ.get("BYTES", 1 << 20)))
        select.register(s, READ | WRITE, [data, 0, 0])
        open_ones += 1
    while open_ones:
        for key, events in select.select(30) or sys.exit("nothing was ready for 30 s"):
            s, state = key.fileobj, key.data
            data, sent, got = state
            if events & WRITE and sent < len(data):
                sent += s.send(data[sent : sent + rnd.choice((1, 100, 5000, 70000))])
                if sent == len(data):
                    s.shutdown(socket.SHUT_WR)
                    select.modify(s, READ, state)
            if events & READ:
                part = s.recv(rnd.choice((7, 3000, 100000)))
                assert part == data[got : got + len(part)], "other bytes than were sent"
                got += len(part)
                if not part:
                    assert got == len(data), "%d of %d bytes came back" % (got, len(data))
                    select.unregister(s)
                    s.close()
                    open_ones -= 1
            state[1:] = sent, got
    print("12 clients, all bytes as sent")


try:
    server() if role == "server" else client()
except KeyboardInterrupt:
    pass
