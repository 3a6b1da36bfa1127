"""The ladder's rows: what each measures, how, and what is wanted. To add a row, write a function
from Bed to values, and a Row in ROWS.

A cell is a call of the row's function with a Bed that has the library or has not. It returns the
values of its metrics.
"""

from dataclasses import dataclass, replace
from typing import Callable

from . import counts, own, programs
from .figures import Metric, Target


def better(value):
    return Target("better", value)


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    cell: Callable  # (Bed) -> {metric: value}
    metrics: tuple
    baseline: str = "tcp"  # what stands beside ours
    transport: str | None = "shm"  # None: the default policy
    preload: bool = True  # false: the program calls rsocket(7) itself
    pinned: int | None = None  # both ends on this core
    ring: bool = False  # compare with the day's ring as well
    rounds: int | None = None  # where the usual number is too many
    counts: bool = False  # instructions or sizes, which no load changes: one round will do
    carries: bool = True  # bytes that are counted: not so instruction counts, start-up and hooks


def beside_another_build(row):
    """The row with another build of the library in the place of its baseline. Nothing shall be
    lost: a twentieth is what such figures differ by."""
    metrics = tuple(replace(m, targets=(better(0.95),)) for m in row.metrics)
    return replace(row, baseline="the other build", metrics=metrics)


def latency(p50, p99, *more):
    return (
        Metric("p50", "p50", "µs", True, tuple(better(v) for v in (p50,) if v) + more),
        Metric("p99", "p99", "µs", True, tuple(better(v) for v in (p99,) if v)),
    )


def rate(key, title, unit, times, *more):
    return Metric(key, title, unit, False, (better(times),) + more)


def _redis(name, title, clients, pipeline, tcp, ours, times):
    return Row(
        name,
        title,
        lambda bed: programs.redis(bed, clients, pipeline, tcp, ours),
        (rate("GET", "GET", "k/s", times), rate("SET", "SET", "k/s", times)),
    )


def _nginx(name, title, size, connections, sendfile, times, keeps=False):
    return Row(
        name,
        title,
        lambda bed: programs.nginx(bed, size, connections, sendfile, keeps=keeps),
        (rate("rate", "", "k/s", times),),
    )


ROWS = (
    Row(
        "rsocket",
        "rsocket(7) ping-pong, 64 B, spinning",
        own.spinning_rsocket,
        latency(15, 10, Target("lines", 4)),
        preload=False,
    ),
    Row("spinning", "preloaded ping-pong, 64 B, spinning", own.spinning, latency(15, 10, Target("lines", 4))),
    Row("blocking", "preloaded ping-pong, 64 B, blocking", own.blocking, latency(None, None)),
    Row("sockperf", "sockperf ping-pong, 64 B, blocking", programs.sockperf_latency, latency(100, 20)),
    Row("sockperf-one-core", "the same, both ends on one core", programs.sockperf_latency, latency(2, None), pinned=0),
    Row("sockperf-rate", "sockperf throughput, 64 B", programs.sockperf_rate, (rate("rate", "", "M/s", 10),)),
    Row("iperf3", "iperf3, one stream", programs.iperf3, (rate("rate", "", "MB/s", 4, Target("ring", 0.7)),), ring=True),
    Row("iperf3-four", "iperf3, four streams", lambda b: programs.iperf3(b, "-P", "4"), (rate("rate", "", "MB/s", 4),)),
    Row("iperf3-bidir", "iperf3, both ways", lambda b: programs.iperf3(b, "--bidir"), (rate("rate", "", "MB/s", 4),)),
    Row("stream", "checked stream of 1 GiB", own.stream, (rate("rate", "", "MB/s", 2),)),
    _redis("redis-1", "redis-benchmark -c 1", 1, 1, 12000, 150000, 30),
    _redis("redis-50", "redis-benchmark -c 50", 50, 1, 60000, 500000, 12),
    _redis("redis-pipelined", "redis-benchmark -c 50 -P 16", 50, 16, 800000, 1600000, 2),
    _nginx("nginx-1k", "nginx and wrk, 1 KiB", 1 << 10, 50, False, 2.5),
    _nginx("nginx-1k-sendfile", "nginx and wrk, 1 KiB, sendfile", 1 << 10, 50, True, 2.5),
    _nginx("nginx-1k-open", "nginx and wrk, 1 KiB, file kept open", 1 << 10, 50, False, 2.5, keeps=True),
    _nginx("nginx-1k-open-sendfile", "the same, sendfile", 1 << 10, 50, True, 2.5, keeps=True),
    _nginx("nginx-1m", "nginx and wrk, 1 MiB", 1 << 20, 8, False, 3),
    _nginx("nginx-1m-sendfile", "nginx and wrk, 1 MiB, sendfile", 1 << 20, 8, True, 3),
    Row(
        "close",
        "connect, one request, close (C loop)",
        own.connects,
        (Metric("us", "", "µs", True, (better(0.95),)),),
        transport=None,
    ),
    Row(
        "close-wrk",
        "nginx and wrk, a connection for each request",
        lambda b: programs.nginx(b, 1 << 10, 8, False, close=True),
        (rate("rate", "", "k/s", 0.95),),
        transport=None,
    ),
    Row(
        "close-attached",
        "the C loop, each connection over shared memory",
        own.connects,
        (Metric("us", "", "µs", True),),
    ),
    Row(
        "crowd",
        "epoll with 10,000 idle connections",
        own.crowd,
        (
            Metric("p50", "p50", "µs", True),
            Metric("growth", "against 10 idle", "×", True, (Target("at_most", 1.2),)),
        ),
        rounds=1,
    ),
    Row(
        "memory",
        "memory for each idle connection",
        own.memory,
        (
            Metric("kib", "both ends", "KiB", True, (Target("above", 32),), noisy=False),
            Metric("mapped", "shared pages counted twice", "KiB", True, noisy=False),
        ),
        rounds=1,
    ),
    Row(
        "paced",
        "CPU at one message a millisecond",
        own.paced,
        (
            Metric("cpu", "for each", "µs", True, (Target("costs", 1.5),)),
            Metric("idle", "in a second at rest", "µs", True, (Target("at_most", 1000),)),
        ),
    ),
    Row(
        "hook",
        "a hook on a foreign descriptor",
        counts.hook_time,
        (Metric("ns", "time", "ns", True, (Target("above", 3),)),),
        baseline="without",
        transport="shm",
        carries=False,
    ),
    Row(
        "hook-count",
        "a hook on a foreign descriptor",
        counts.hook_count,
        (Metric("count", "instructions", "", True, (Target("above", 15),), noisy=False),),
        baseline="without",
        counts=True,
        carries=False,
    ),
    Row(
        "send-count",
        "send of 64 B",
        lambda b: counts.message(b, "send"),
        (Metric("count", "instructions in user space", "", True, noisy=False),),
        counts=True,
    ),
    Row(
        "receive-count",
        "receive of 64 B",
        lambda b: counts.message(b, "receive"),
        (Metric("count", "instructions in user space", "", True, noisy=False),),
        counts=True,
    ),
    Row(
        "look-count",
        "receive that finds nothing",
        lambda b: counts.message(b, "look"),
        (Metric("count", "instructions in user space", "", True, noisy=False),),
        counts=True,
    ),
    Row(
        "wait-count",
        "epoll_wait that finds 64 B",
        lambda b: counts.message(b, "wait"),
        (Metric("count", "instructions in user space", "", True, noisy=False),),
        counts=True,
    ),
    Row(
        "modify-count",
        "epoll_ctl that changes what is wanted",
        lambda b: counts.message(b, "modify"),
        (Metric("count", "instructions in user space", "", True, noisy=False),),
        counts=True,
    ),
    Row(
        "start-up",
        "what an exec costs more",
        counts.start_up,
        (Metric("us", "", "µs", True, (better(2),)),),
        baseline="upstream's library",
        carries=False,
    ),
)
