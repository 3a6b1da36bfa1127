"""The machine: what it is, how fast it hands over a cache line at this moment, how much of it
others use."""

import os
import platform
import resource
import subprocess
import time


CPUS = len(os.sched_getaffinity(0))


def bench(name):
    return os.path.join(os.environ["BENCH"], name)


def _first(path, key, default="?"):
    try:
        with open(path) as f:
            for line in f:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return default


def describe():
    """One line for people: processor, cores, kernel, memory, date, what others did."""
    kib = int(_first("/proc/meminfo", "MemTotal", "0 kB").split()[0])
    return (
        f"{_first('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores"
        f"{' (virtual)' if 'hypervisor' in _first('/proc/cpuinfo', 'flags') else ''}, {kib / 2**20:.0f} GiB, "
        f"Linux {platform.release()}, {time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f}"
    )


def _number(*command):
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120, text=True).stdout
    return float(out.split()[1])


def line(milliseconds=60):
    """Nanoseconds of a cache line's round trip between two cores."""
    return _number(bench("limits"), "line", str(milliseconds))


def _speed_file():
    return bench("fast-line." + platform.node())


def _earlier():
    try:
        with open(_speed_file()) as f:
            return [float(x) for x in f.read().split()]
    except (OSError, ValueError):
        return []


def known_speed():
    """The fast speed that earlier runs saw here, in nanoseconds; 0 if there was none. A run that
    sees only the slow one would take it for the fast one."""
    seen = _earlier()
    return sorted(seen)[len(seen) // 4] if seen else 0.0


def remember_speed(line):
    """What this run took for the fast speed; the last twenty runs are kept."""
    with open(_speed_file(), "w") as f:
        f.write(" ".join(map(str, [*_earlier(), round(line, 1)][-20:])) + "\n")


def ring(mib=512):
    """MB/s of a ring with two copies and streaming stores between two cores."""
    return _number(bench("limits"), "ring", str(mib))


def _busy():
    """Seconds in which the cores did something or were taken away, all cores. Work at low priority
    counts: it gives way, but the scheduler puts the two ends of a connection onto one core for
    it."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    # user, nice, system, idle, iowait, irq, softirq, steal
    return (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / os.sysconf("SC_CLK_TCK")


def _children():
    u = resource.getrusage(resource.RUSAGE_CHILDREN)
    return u.ru_utime + u.ru_stime


class Others:
    """`with Others() as o: ...` : o.share is the part of the machine that others used meanwhile.
    All children must have ended inside."""

    def __enter__(self):
        self.began, self.busy, self.own = time.monotonic(), _busy(), _children()
        return self

    def __exit__(self, *_):
        spent = time.monotonic() - self.began
        foreign = _busy() - self.busy - (_children() - self.own)
        # Two ticks of each core are the clock's own grain.
        foreign -= 0.02 * os.cpu_count()
        self.share = max(0.0, foreign / (spent * os.cpu_count()))


class BusyLoops:
    """So many busy loops run inside; all on one processor, if it says on which."""

    def __init__(self, count, pinned=None):
        self.count, self.pinned, self.running = count, pinned, []

    def __enter__(self):
        on = ["taskset", "-c", str(self.pinned)] if self.pinned is not None else []
        for _ in range(self.count):
            self.running.append(subprocess.Popen([*on, "sh", "-c", "while :; do :; done"], stdin=subprocess.DEVNULL))
        return self

    def __exit__(self, *_):
        for p in self.running:
            p.kill()
            p.wait()
