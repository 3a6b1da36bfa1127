"""The field ladder: unmodified programs by the default policy, beside kernel TCP, idle and beside
busy loops.

`scripts/bench field` starts it. Rows stand in `rows`; what is made of their cells in `figures`;
what is shown in `report`.
"""

import argparse
import os
import re
import subprocess
import sys

from ladder import machine
from ladder.run import Failed

from . import report
from .bed import FieldBed
from .conditions import condition
from .figures import order, summary
from .rows import ROWS


def arguments():
    p = argparse.ArgumentParser(
        prog="scripts/bench field",
        description="Unmodified programs beside kernel TCP, idle and busy.",
    )
    p.add_argument(
        "rows", nargs="*", metavar="ROW-REGEX", help="only the rows that match one of them wholly"
    )
    p.add_argument(
        "-p",
        "--pairs",
        type=int,
        default=10,
        help="pairs for each row and condition; every one counts (10)",
    )
    p.add_argument("-s", "--seconds", type=float, default=2.0, help="length of a measurement (2)")
    p.add_argument(
        *("-c", "--condition"),
        action="append",
        help="idle, busy (a busy loop a processor), busy:N, one (all and a busy loop on one "
        "processor); may be repeated; all three if none is given",
    )
    p.add_argument("--list", action="store_true", help="the rows")
    p.add_argument(
        "--needs",
        action="store_true",
        help="what scripts/bench has to install and build for the rows",
    )
    p.add_argument("--out", default=os.environ.get("BENCH"), help="where field.json goes")
    return p.parse_intermixed_args()


def needs(rows):
    """Lines `need SPEC`, `pip PACKAGE`, `cc NAME`, `mpicc NAME`."""
    lines = dict.fromkeys(
        f"{how} {what}"
        for row in rows
        for how, all_ in (
            ("need", row.needs),
            ("pip", row.pip),
            ("cc", row.builds),
            ("mpicc", row.mpi),
        )
        for what in all_
    )
    return "\n".join(lines)


def cell(row, where, which, seconds, rates):
    """One measurement; `rates` are those of its kind, to which it adds its own."""
    library = os.environ["LIB"] if which == "ours" else None
    try:
        with FieldBed(library, where, seconds, rates, row.transport) as bed:
            values = row.cell(bed)
            if library:
                values["share"] = bed.share()
    except (Failed, subprocess.TimeoutExpired) as why:
        raise Failed(f"{'under the library' if library else 'over TCP'}: {why}") from why
    rates.append(values[row.key])
    return values


def rounds(row, where, pairs, seconds):
    done, rates = [], {"ours": [], "tcp": []}
    for i in range(pairs):
        cells = {}
        for which in order(i):
            cells[which] = cell(
                row, where, which, seconds, rates["ours" if which == "ours" else "tcp"]
            )
        done.append(cells)
    return done


def written(options, what, done):
    """All that is done so far: a run takes hours, and may be stopped."""
    path = os.path.join(options.out, "field.json")
    with open(path, "w") as f:
        f.write(report.as_json(what, done))
    return path


def run(options, what, rows, conditions):
    """All of it; what is done, and how many rows failed."""
    done, failed = [], 0
    for row in rows:
        for where in (c for c in conditions if c.kind in row.kinds):
            try:
                taken = rounds(row, where, options.pairs, options.seconds)
            except Failed as why:
                failed += 1
                print(f"FAIL {row.name} {where.name}: {why}", flush=True)
                continue
            s = summary(row, where.kind, taken)
            done.append((row, where, taken, s))
            print(report.line(row, where, s, len(taken)), flush=True)
            written(options, what, done)
    return done, failed


def main():
    options = arguments()
    rows = [
        r for r in ROWS if not options.rows or any(re.fullmatch(x, r.name) for x in options.rows)
    ]
    if not rows:
        print("no row matches; scripts/bench field --list shows them", file=sys.stderr)
        return 2
    if options.list or options.needs:
        print(report.listing(rows) if options.list else needs(rows))
        return 0
    try:
        conditions = [condition(c) for c in options.condition or ("idle", "busy", "one")]
    except ValueError as why:
        print(why, file=sys.stderr)
        return 2
    what = machine.describe()
    print(f"# {what}", flush=True)
    os.makedirs(options.out, exist_ok=True)
    done, failed = run(options, what, rows, conditions)
    if not done and not failed:
        print("none of these rows means anything under these conditions", file=sys.stderr)
        return 2
    if done:
        print(report.table(what, done))
        print(f"written: {written(options, what, done)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
