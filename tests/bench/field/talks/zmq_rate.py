"""pyzmq, 64 B: `zmq_rate.py serve PORT HOW`, `zmq_rate.py ask PORT SECONDS HOW`; HOW is `req` or
`push`.

`req`: REQ and REP. `push`: the client pushes for so long, the server pulls. A word of its own says
that this was the last one; the answer to it says that all have come. Prints `rate N p99 NS`, and
for `push` no p99.
"""

import signal
import sys
import time

import zmq
from talking import rated

BODY, LAST = b"b" * 64, b"last"


def received(s):
    """The next message. A signal that comes just before a wait does not end it: it looks up."""
    while True:
        try:
            return s.recv()
        except zmq.Again:
            pass


def serve(port, how):
    context = zmq.Context()
    reply, pull = context.socket(zmq.REP), context.socket(zmq.PULL)
    reply.rcvtimeo = pull.rcvtimeo = 500
    (reply if how == "req" else pull).bind(f"tcp://127.0.0.1:{port}")
    if how == "push":
        reply.bind(f"tcp://127.0.0.1:{port + 1}")
        count(pull, reply)
    while True:
        reply.send(received(reply))


def count(pull, reply):
    """How many came before the last."""
    number = 0
    while received(pull) != LAST:
        number += 1
    received(reply)
    reply.send(b"%d" % number)


def push(context, port, seconds):
    out, asks = context.socket(zmq.PUSH), context.socket(zmq.REQ)
    out.connect(f"tcp://127.0.0.1:{port}")
    asks.connect(f"tcp://127.0.0.1:{port + 1}")
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            out.send(BODY)
        number += 100
    out.send(LAST)
    asks.send(b"all?")
    if int(asks.recv()) != number:
        sys.exit("some are missing")
    print(f"rate {number / (time.perf_counter() - began):.1f}")


def ask(port, seconds, how):
    context = zmq.Context()
    if how == "push":
        push(context, port, seconds)
        return
    asks = context.socket(zmq.REQ)
    asks.connect(f"tcp://127.0.0.1:{port}")
    rated(seconds, lambda: asks.send(BODY) or asks.recv(), BODY)


if sys.argv[1] == "serve":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    serve(int(sys.argv[2]), sys.argv[3])
else:
    ask(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
