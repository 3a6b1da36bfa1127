"""Small programs of our own: the ping-pong that says most beside a busy loop, and what connections
cost."""

from ladder import own
from ladder.machine import bench
from ladder.run import fields

from ..bed import told
from ..row import BUSY_AND_ONE, Row


def _resting(bed):
    """Time of processors that both ends take in a second while a thousand connections say nothing,
    in µs."""
    return {"rest": fields(bed.talk("resting.py", bed.seconds))["cpu"]}


def _attached(bed):
    return {"us": fields(bed.client(bench("connects"), int(1000 * bed.seconds)))["us"]}


def _crowd(bed):
    """Few round trips: most of the time goes into the connections."""
    out = bed.client(bench("idle"), 10000, int(20000 * bed.seconds), 10)
    return {"growth": fields(out)["growth"]}


def _threads(number):
    def cell(bed):
        return told(bed.client(bench("threads"), number, bed.whole_seconds))

    title = f"{number} blocking threads at each end, 1,000 B there and back"
    return Row(f"threads-{number}", title, cell, builds=("threads",))


ROWS = (
    Row("rounds", "Python, 64 B there and back, blocking", own.rounds, strict=BUSY_AND_ONE),
    *(_threads(number) for number in (16, 64, 256)),
)

COSTS = (
    Row(
        *("resting", "1,000 connections over shared memory at rest, both ends", _resting),
        **dict(unit="µs/s", key="rest", less=True, kinds=("busy",), most=1000, above_tcp=True),
    ),
    Row(
        *("close-attached", "connect, one request, close, each over shared memory", _attached),
        **dict(unit="µs", key="us", less=True, kinds=("idle",), most=100, above_tcp=True),
        **dict(builds=("connects",), transport="shm"),
    ),
    Row(
        *("crowd", "a round trip beside 10,000 idle connections on epoll, against 10", _crowd),
        **dict(unit="×", key="growth", less=True, kinds=("idle",), most=1.2),
        **dict(builds=("idle",), transport="shm"),
    ),
)
