"""Cells of our own programs (`tests/bench/*.c`): each checks its bytes and prints its figures."""

import os
import sys

from .machine import bench
from .run import fields


def _pingpong(bed, program, *arguments):
    f = fields(bed.client(bench(program), *arguments))
    return {"p50": f["p50"] / 1e3, "p99": f["p99"] / 1e3}


def spinning(bed):
    return _pingpong(bed, "pingpong", _rounds(bed, 60000, 1000000))


def spinning_rsocket(bed):
    """The same program with the calls of rsocket(7); kernel TCP is the program without them."""
    if bed.library is None:
        return spinning(bed)
    return _pingpong(bed, "pingpong-rsocket", _rounds(bed, 60000, 1000000))


def blocking(bed):
    return _pingpong(bed, "pingpong", _rounds(bed, 12000, 400000), "blocking")


def _rounds(bed, tcp, ours):
    """So many that either takes about as long."""
    return max(2000, int((tcp if bed.library is None else ours) * bed.seconds))


def stream(bed):
    # Half of it for the shortest form.
    return {"rate": fields(bed.client(bench("stream"), 1024 if bed.seconds >= 0.5 else 256))["MB/s"]}


def connects(bed):
    return {"us": fields(bed.client(bench("connects"), int(8000 * bed.seconds)))["us"]}


def crowd(bed):
    many = 10000 if bed.seconds >= 0.5 else 500
    f = fields(bed.client(bench("idle"), many, _rounds(bed, 100000, 1000000), 10))
    return {"p50": f["p50"] / 1e3, "growth": f["growth"]}


def memory(bed):
    f = fields(bed.client(bench("idle"), 1000, 100))
    return {"kib": f["kib"], "mapped": f["mapped"]}


def paced(bed):
    f = fields(bed.client(bench("paced"), int(1000 * bed.seconds), int(500 * bed.seconds)))
    return {"cpu": f["cpu_us"], "idle": f["idle_us"] / (0.5 * bed.seconds)}


def rounds(bed):
    """A Python program that knows nothing of us, for so long: one that collapses takes no
    longer."""
    f = fields(bed.client(sys.executable, os.path.join(os.getcwd(), "rounds.py"), bed.seconds))
    return {"rate": f["rate"] / 1e3, "p99": f["p99"] / 1e3}
