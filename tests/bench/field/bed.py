"""A cell's surroundings in the field: a Bed by the default policy. Busy loops run while its client
runs, and not while servers start and end. It knows no program."""

import os
import sys

from ladder.machine import BusyLoops
from ladder.run import Bed, Failed, fields

FIELD = os.path.dirname(os.path.abspath(__file__))


class FieldBed(Bed):
    """`rates`: how fast cells of this kind were before, for clients that count requests and not
    seconds. `transport`: only for rows that are about one."""

    def __init__(self, library, condition, seconds, rates=(), transport=None):
        super().__init__(library, transport, seconds, condition.pinned)
        self.condition, self.rates = condition, rates
        self.wrapper = []  # in front of every command: a cgroup, another user

    def _command(self, command):
        return super()._command([*self.wrapper, *command])

    @property
    def whole_seconds(self):
        return max(1, round(self.seconds))

    @property
    def patience(self):
        """So many seconds are enough for a client that cannot be told how long it shall take."""
        return 30 + 10 * self.seconds

    def client(self, *command, **how):
        """What is measured: beside the busy loops."""
        how.setdefault("limit", 240)
        with BusyLoops(self.condition.loops, self.condition.pinned):
            return super().client(*command, **how)

    def prepare(self, *command, **how):
        """What comes before the measurement: without them."""
        return super().client(*command, **how)

    def talk(self, name, *arguments, python=sys.executable):
        """The client that is `talks/NAME`; `python` names an interpreter other than the
        system's."""
        return self.client(python, os.path.join(FIELD, "talks", name), *arguments)

    def number(self, guess):
        """Requests that take about the time wanted: by the fastest cell of this kind so far, or by
        a guess, both in k/s."""
        return max(1000, int(1000 * max(self.rates, default=guess) * self.seconds))

    def share(self):
        """The part of all bytes that did not go by TCP; None where no library counts."""
        if self.library is None:
            return None
        moved = {
            w: self.counted(f"bytes.sent.{w}") + self.counted(f"bytes.received.{w}")
            for w in ("shm", "rdma", "tcp")
        }
        if not sum(moved.values()):
            raise Failed("no byte was counted: the library was not there")
        return 1 - moved["tcp"] / sum(moved.values())


def told(out, per=1e3):
    """What a client says in its line `rate N p99 NS`. The rate is in thousands a second if not told
    otherwise; the p99, where there is one, in µs."""
    lines = [line for line in out.splitlines() if line.startswith("rate ")]
    if not lines:
        raise Failed(f"no figure: {out[-200:]}".replace("\n", " | "))
    f = fields(lines[-1])
    return {"rate": f["rate"] / per, **({"p99": f["p99"] / 1e3} if "p99" in f else {})}


def interpreter():
    """Python of the virtual environment that the packages are in."""
    return os.path.join(os.environ["VENV"], "bin", "python")
