"""What is made of cells: ratios of neighbours in a round, their worst, median and best, verdicts.
Pure functions.

A round is three cells, `ours`, `tcp`, `again`: TCP in the middle stands beside ours and beside TCP
once more.
"""

from dataclasses import dataclass, field
from statistics import median

# By condition, what the worst pair and the median of the ratios have to be.
WANTED = {"idle": (None, 1), "one": (1.1, 1.4), "busy": (0.9, 2)}
ROUND = ("ours", "tcp", "again")


def order(number):
    """The cells of a round in the order in which they run: ours first, and ours last, in turns."""
    return ROUND if number % 2 == 0 else ROUND[::-1]


@dataclass
class Spread:
    worst: float
    median: float
    best: float

    @staticmethod
    def of(values):
        return Spread(min(values), median(values), max(values)) if values else None


@dataclass
class Summary:
    tcp: float
    ours: float
    ratio: Spread
    scatter: Spread  # TCP beside TCP
    p99: float | None
    cpu: float | None  # how many times TCP's time of a processor one request takes
    share: float
    missed: list = field(default_factory=list)


def _ratios(rounds, over, under, key, less):
    pairs = [(r[over][key], r[under][key]) for r in rounds if key in r[over] and key in r[under]]
    if less:
        pairs = [(b, a) for a, b in pairs]
    return [a / b if b else float("inf") for a, b in pairs]


def _missed(row, kind, s):
    """What was wanted and not reached, in words."""
    if row.most is not None:
        base = s.tcp if row.above_tcp else 0
        if s.ours - base <= row.most:
            return []
        return [f"{s.ours - base:.3g} {row.unit}, at most {row.most:g} wanted"]
    worst, middle = WANTED[kind] if kind in ("idle", *row.strict) else (None, None)
    missed = []
    if worst is not None and s.ratio.worst < worst:
        missed.append(f"worst {s.ratio.worst:.3g}, wanted {worst:g}")
    if middle is not None and s.ratio.median < middle:
        missed.append(f"median {s.ratio.median:.3g}, wanted {middle:g}")
    if kind == "busy" and kind in row.strict and s.p99 is not None and s.p99 < 1:
        missed.append(f"p99 {s.p99:.3g}, wanted 1")
    if s.cpu is not None and s.cpu > 1:
        missed.append(f"CPU a request {s.cpu:.3g}, at most 1 wanted")
    return missed


def summary(row, kind, rounds):
    """Of rounds, each {cell: {key: value}}, where ours has `share` too."""
    middle = lambda values: median(values) if values else None
    s = Summary(
        tcp=median(r["tcp"][row.key] for r in rounds),
        ours=median(r["ours"][row.key] for r in rounds),
        ratio=Spread.of(_ratios(rounds, "ours", "tcp", row.key, row.less)),
        scatter=Spread.of(_ratios(rounds, "again", "tcp", row.key, row.less)),
        p99=middle(_ratios(rounds, "ours", "tcp", "p99", True)),
        cpu=middle(_ratios(rounds, "ours", "tcp", "cpu", False)),
        share=median(r["ours"]["share"] for r in rounds),
    )
    s.missed = _missed(row, kind, s)
    return s
