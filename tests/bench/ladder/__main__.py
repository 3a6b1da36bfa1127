"""The ladder: every row of the table beside kernel TCP, in turns, in one run. scripts/bench starts
it.

What a cell is stands in `rows`; how cells become ratios in `figures`; what is printed and written
in `report` and `plot`.
"""

import argparse
import os
import sys
import time

from . import machine, plot, report
from .figures import Cell, enough, fast_speed, summary
from .rows import ROWS, beside_another_build
from .run import Bed, Failed


class Ladder:
    def __init__(self, options):
        self.options = options
        self.lines = []  # all looks at the machine's speed in this run
        self.known = machine.known_speed()
        self.failed = []

    def probe(self):
        line = machine.line(self.options.probe)
        self.lines.append(line)
        return line

    @property
    def best(self):
        seen = fast_speed(self.lines)
        return min(seen, self.known) if self.known else seen

    def cell(self, row, ours):
        """One measurement with its probes; what carried the bytes is checked."""
        library = directory = None
        if ours:
            library = os.environ["LIB"] if row.preload else ""
        elif self.options.beside:
            directory = self.options.beside
            library = os.path.join(directory, "librspreload.so") if row.preload else ""
        before = self.probe()
        with (
            Bed(library, row.transport, self.options.seconds, row.pinned) as bed,
            machine.Others() as others,
        ):
            if directory and not row.preload:
                bed.environment["LD_LIBRARY_PATH"] = directory
            values = row.cell(bed)
            if row.carries:
                bed.carried()
        cell = Cell(values, (before, self.probe()), others.share)
        if row.ring and ours:
            cell.ring = machine.ring(256 if self.options.seconds < 1 else 512)
        return cell

    def pairs(self, row):
        """Rounds of baseline and ours, the first changing in turns, until enough pairs are fair or
        patience is over."""
        wanted = 1 if row.counts else min(row.rounds or self.options.rounds, self.options.rounds)
        most = wanted if row.counts else wanted + -(-wanted * self.options.patience // 100)
        pairs = []
        while len(pairs) < most:
            first = len(pairs) % 2
            cells = {}
            for ours in (first, 1 - first):
                cells[ours] = self.cell(row, bool(ours))
            pairs.append((cells[0], cells[1]))
            if len(pairs) >= wanted and enough(pairs, self.best, wanted):
                break
        return pairs

    def run(self, rows):
        taken = []
        for row in rows:
            began = time.monotonic()
            try:
                taken.append((row, self.pairs(row)))
            except Failed as why:
                self.failed.append(row.name)
                print(f"FAIL bench {row.name}: {why}", flush=True)
                continue
            for r in self.results(*taken[-1]):
                print(report.line(row, r), flush=True)
            if self.options.verbose:
                print(f"# {row.name}: {len(taken[-1][1])} pairs in {time.monotonic() - began:.1f} s", flush=True)
        return taken

    def results(self, row, pairs):
        return [r for r in (summary(m, pairs, self.best) for m in row.metrics) if r]


def arguments():
    p = argparse.ArgumentParser(prog="scripts/bench", description="Measures beside kernel TCP, in one run.")
    p.add_argument("rows", nargs="*", metavar="NAME", help="only these rows")
    p.add_argument("--list", action="store_true", help="the rows and what is wanted")
    p.add_argument("--rounds", type=int, default=5, help="fair pairs for each row (5)")
    p.add_argument("--seconds", type=float, default=1.0, help="length of a measurement (1)")
    p.add_argument("--patience", type=int, default=100, help="percent of further pairs while too few are fair (100)")
    p.add_argument("--probe", type=int, default=60, help="milliseconds of a look at the machine's speed (60)")
    p.add_argument("--short", action="store_true", help="three pairs of a second, no further ones")
    p.add_argument("--out", default=os.environ["BENCH"], help="where bench.json and bench.svg go")
    p.add_argument("--verbose", action="store_true")
    p.add_argument("--beside", metavar="DIRECTORY", help="another build of the libraries, instead of TCP")
    o = p.parse_args()
    if o.beside:
        o.beside = os.path.abspath(o.beside)
        for name in ("librspreload.so", "librsocket.so"):
            if not os.path.isfile(os.path.join(o.beside, name)):
                p.error(f"no {name} in {o.beside}")
    if o.short:
        o.rounds, o.patience = 3, 0
    return o


def main():
    options = arguments()
    if options.list:
        print(report.listing(ROWS))
        return 0
    known = {r.name: r for r in ROWS}
    unknown = [n for n in options.rows if n not in known]
    if unknown:
        print(f"no such row: {' '.join(unknown)}; scripts/bench --list shows them", file=sys.stderr)
        return 2
    rows = [known[n] for n in options.rows] or list(ROWS)
    if options.beside:
        rows = [beside_another_build(row) for row in rows]
    ladder = Ladder(options)
    what = machine.describe()
    print(f"# {what}", flush=True)
    lines = [ladder.probe() for _ in range(5)]
    ring = machine.ring(256)
    taken = ladder.run(rows)
    results = [(row, ladder.results(row, pairs)) for row, pairs in taken]
    machine.remember_speed(ladder.best)
    limits = {"line_ns": ladder.best, "line_now_ns": sorted(lines)[2], "ring_mb_s": ring}
    print(report.table(what, limits, results))
    os.makedirs(options.out, exist_ok=True)
    with open(os.path.join(options.out, "bench.json"), "w") as f:
        f.write(report.as_json(what, limits, taken, results))
    with open(os.path.join(options.out, "bench.svg"), "w") as f:
        f.write(plot.svg(what, results))
    print(f"written: {options.out}/bench.json, {options.out}/bench.svg")
    return 1 if ladder.failed else 0


sys.exit(main())
