"""redis and memcached."""

import re

from ladder.machine import bench
from ladder.programs import found, redis_server
from ladder.run import free_port

from ..bed import told
from ..quota import Quota
from ..row import BUSY, BUSY_AND_ONE, Row

REDIS = ("redis-server", "redis-benchmark=redis-tools")


def _get(bed, port, clients, number):
    """redis-benchmark counts requests: one that collapses would take minutes, and is ended. Then
    what it said last counts."""
    ask = (
        "redis-benchmark",
        "-h",
        "127.0.0.1",
        "-p",
        port,
        "-c",
        clients,
        "-n",
        number,
        "-t",
        "get",
    )
    out = bed.client(*ask, limit=bed.patience, cut=True)
    if "throughput summary" not in out:
        # Two such figures in each line: of rates, and of times.
        rates = re.findall(r"rps=.*?overall: ([\d.]+)", out)
        return {"rate": float(rates[-1]) / 1e3 if rates else 0.0}
    head, last = out.rsplit("p99", 1)
    p99 = float(last.splitlines()[1].split()[-2])
    return {
        "rate": found(r"throughput summary: ([\d.]+)", head, "redis-benchmark") / 1e3,
        "p99": p99 * 1e3,
    }


def _benchmark(bed, port, clients, guess, used=None):
    """A run that took long enough; shorter ones say how many requests that are. `used`: the µs of
    processors so far."""
    while True:
        number = bed.number(guess)
        before = used() if used else 0
        values = _get(bed, port, clients, number)
        if number >= 500 * values["rate"] * bed.seconds:
            break
        bed.rates = (*bed.rates, values["rate"])
    if used and "p99" in values:  # else it was ended before all were answered
        values["cpu"] = (used() - before) / number
    return values


def _redis(clients, guess):
    def cell(bed):
        server, port = redis_server(bed)
        values = _benchmark(bed, port, clients, guess)
        bed.stop(server)
        return values

    return cell


def _quota(percent):
    """Both ends in one cgroup that may use so much of one processor; CPU is theirs, for each
    request."""

    def cell(bed):
        with Quota(percent) as quota:
            bed.wrapper = quota.wrapper
            server, port = redis_server(bed)
            values = _benchmark(bed, port, 10, 0.4 * percent, quota.used)
            bed.stop(server)
        return values

    return cell


def _publish(bed):
    server, port = redis_server(bed)
    out = bed.client(bench("subscribers"), port, 100, bed.seconds)
    bed.stop(server)
    return told(out)


def _memcached(connections, size):
    def cell(bed):
        port = free_port()
        server = bed.server(
            port, "memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 1
        )
        out = bed.client(bench("memcache"), port, connections, size, bed.seconds)
        bed.stop(server)
        return told(out)

    return cell


def _memcached_row(name, connections, size, what):
    title = f"memcached, {connections} connections, {what} (a small client in C)"
    return Row(
        name, title, _memcached(connections, size), needs=("memcached",), builds=("memcache",)
    )


ROWS = (
    Row("redis-1", "redis-benchmark -c 1, GET", _redis(1, 20), needs=REDIS, strict=BUSY_AND_ONE),
    Row("redis-50", "redis-benchmark -c 50, GET", _redis(50, 60), needs=REDIS, strict=BUSY),
    Row(
        "redis-publish",
        "redis, 100 subscribers, 64 B (a small client in C)",
        _publish,
        needs=REDIS,
        builds=("subscribers",),
    ),
    *(
        Row(
            f"redis-quota-{n}",
            f"redis -c 10, {n} % of a processor for both ends",
            _quota(n),
            needs=REDIS,
            kinds=("idle",),
        )
        for n in (10, 50)
    ),
    _memcached_row("memcached-1", 1, 100, "100 B"),
    _memcached_row("memcached-16", 16, 100, "100 B"),
    _memcached_row("memcached-large", 1, 500000, "500 KB"),
)
