"""What is made of measurements: pairs, speeds, ratios, verdicts. Knows no process and no file; pure
functions."""

from dataclasses import dataclass, field
from statistics import median

# A cache line handed over this many times slower than at best is the machine's other speed.
SLOW = 1.6
# A cell beside which others used more than this share of the machine shows the others.
OTHERS = 0.15


@dataclass(frozen=True)
class Target:
    """kind, against the baseline: `better` (at least value times better), `costs` (at most value
    times it), `above` (at most value more than it).

    kind, of ours alone: `at_most` (in the metric's unit), `lines` (in µs, at most value round trips
    of a cache line), `ring` (at least that part of the day's ring)."""

    kind: str
    value: float

    def says(self):
        return {
            "better": f"{self.value:g} ×",
            "costs": f"costs ≤ {self.value:g} ×",
            "above": f"+{self.value:g}",
            "at_most": f"≤ {self.value:g}",
            "lines": f"≤ {self.value:g} lines",
            "ring": f"≥ {100 * self.value:g} % of ring",
        }[self.kind]


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    unit: str
    less: bool  # less is better
    targets: tuple = ()
    noisy: bool = True  # false: every pair counts, as of counts, which no load changes


@dataclass
class Cell:
    """One measurement: `values` by metric. The cache line's round trip before and after, in ns;
    what share of the machine others used meanwhile; the ring's MB/s, where the row asks."""

    values: dict
    lines: tuple
    others: float = 0.0
    ring: float = 0.0

    def speed(self, best):
        slow = [line > best * SLOW for line in self.lines]
        if all(slow):
            return "slow"
        return "mixed" if any(slow) else "fast"


@dataclass
class Result:
    """A metric over all pairs. `fair`: taken at the machine's fast speed, undisturbed."""

    metric: Metric
    baseline: float
    ours: float
    ratio: float
    low: float
    high: float
    pairs: int
    of: int
    fair: bool
    verdicts: list = field(default_factory=list)  # (Target, reached, met)


def ratio(metric, baseline, ours):
    """How many times better ours is."""
    above, below = (baseline, ours) if metric.less else (ours, baseline)
    return above / below if below else float("inf")


def fast_speed(lines):
    """The shortest round trip of a cache line that was seen more than now and then: the machine's
    fast speed."""
    lines = sorted(lines)
    for line in lines:
        if sum(1 for other in lines if line <= other <= line * SLOW) * 5 >= len(lines):
            return line
    return 0.0


def choose(pairs, best):
    """The pairs to go by, and whether they are fair: both cells at the fast speed and undisturbed;
    else those at one speed; else all."""
    fast = [p for p in pairs if all(c.speed(best) == "fast" and c.others <= OTHERS for c in p)]
    if fast:
        return fast, True
    same = [p for p in pairs if p[0].speed(best) == p[1].speed(best) != "mixed"]
    return (same or pairs), False


def enough(pairs, best, wanted):
    return sum(1 for p in pairs if choose([p], best)[1]) >= wanted


def reached(target, metric, base, ours, times, line, ring):
    """What was reached in the target's own terms, and whether that is enough."""
    if target.kind == "better":
        return f"{times:.3g} ×", times >= target.value
    if target.kind == "costs":
        return f"costs {1 / times:.3g} ×", times * target.value >= 1
    if target.kind == "above":
        return f"{ours - base:+.3g} {metric.unit}", ours - base <= target.value
    if target.kind == "at_most":
        return f"{ours:.3g} {metric.unit}", ours <= target.value
    if target.kind == "lines":
        return f"{ours * 1000 / line:.3g} lines", ours * 1000 <= target.value * line
    if target.kind == "ring":
        part = ours / ring if ring else 0
        return f"{100 * part:.0f} % of ring", part >= target.value
    raise ValueError(target.kind)


def summary(metric, pairs, best):
    """The Result of a metric over pairs of cells (baseline, ours); None without a pair that has
    it."""
    pairs = [p for p in pairs if all(metric.key in c.values for c in p)]
    if not pairs:
        return None
    if metric.noisy:
        used, fair = choose(pairs, best)
    else:
        used, fair = pairs, True
    base = median(p[0].values[metric.key] for p in used)
    ours = median(p[1].values[metric.key] for p in used)
    ratios = [ratio(metric, p[0].values[metric.key], p[1].values[metric.key]) for p in used]
    r = Result(metric, base, ours, median(ratios), min(ratios), max(ratios), len(used), len(pairs), fair)
    line = median(sum(p[1].lines) / 2 for p in used)
    ring = median(p[1].ring for p in used)
    for t in metric.targets:
        r.verdicts.append((t, *reached(t, metric, base, ours, r.ratio, line, ring)))
    return r
