"""What else runs on the machine while a cell is measured. Pure but for the number of processors."""

import os
import re
from dataclasses import dataclass

from ladder.machine import CPUS


@dataclass(frozen=True)
class Condition:
    """`loops` busy loops run beside it; all of it is on processor `pinned`, where that is a
    number."""

    name: str
    kind: str  # idle, busy, one: what a row's targets go by
    loops: int = 0
    pinned: int | None = None


def condition(word):
    """`idle`, `busy` (a busy loop a processor), `busy:N`, `one` (both ends and one busy loop on one
    processor)."""
    if word == "idle":
        return Condition(word, "idle")
    if word == "one":
        return Condition(word, "one", 1, min(os.sched_getaffinity(0)))
    m = re.fullmatch(r"busy(?::(\d+))?", word)
    if not m:
        raise ValueError(f"no such condition: {word}")
    loops = int(m[1] or CPUS)
    return Condition(f"busy:{loops}", "busy", loops)
