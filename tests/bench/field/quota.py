"""A cgroup with a quota of processor time, of either version. It knows no program."""

import os
import time

from ladder.run import Failed

PERIOD = 100000  # µs, the kernel's own choice
ROOT = "/sys/fs/cgroup"


def _write(path, text):
    with open(path, "w") as f:
        f.write(str(text))


def _read(path):
    with open(path) as f:
        return f.read()


class Quota:
    """`with Quota(10) as q`: what runs behind `q.wrapper` may use a tenth of one processor, all of
    it together."""

    def __init__(self, percent):
        self.percent, self.groups = percent, []

    def __enter__(self):
        name = f"rsocket-bench-{os.getpid()}"
        quota = PERIOD * self.percent // 100
        try:
            if os.path.exists(f"{ROOT}/cgroup.controllers"):
                self._unified(name, quota)
            else:
                self._make(f"{ROOT}/cpuacct/{name}")
                self._make(f"{ROOT}/cpu/{name}")
                _write(f"{self.groups[-1]}/cpu.cfs_period_us", PERIOD)
                _write(f"{self.groups[-1]}/cpu.cfs_quota_us", quota)
                self.used = lambda: int(_read(f"{self.groups[0]}/cpuacct.usage")) / 1e3
        except OSError as why:
            self.__exit__()
            raise Failed(f"no quota may be set here: {why}") from None
        return self

    def _unified(self, name, quota):
        _write(f"{ROOT}/cgroup.subtree_control", "+cpu")
        self._make(f"{ROOT}/{name}")
        _write(f"{self.groups[0]}/cpu.max", f"{quota} {PERIOD}")
        self.used = lambda: int(_read(f"{self.groups[0]}/cpu.stat").split()[1])

    def _make(self, path):
        if not os.path.isdir(path):
            os.mkdir(path)
        self.groups.append(path)

    def __exit__(self, *_):
        # A process that was just waited for may still be counted.
        for path in self.groups:
            for _ in range(100):
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    time.sleep(0.02)

    @property
    def wrapper(self):
        join = "".join(f'echo $$ >"{g}/cgroup.procs"; ' for g in self.groups)
        return ["sh", "-c", f'{join}exec "$@"', "sh"]
