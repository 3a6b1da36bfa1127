"""What people and programs read: a line for each row and condition, a table of all, JSON. Pure
functions."""

import json
from dataclasses import asdict
from statistics import median

from ladder.report import number

HEAD = (
    "row",
    "beside",
    "TCP",
    "ours",
    "unit",
    "worst",
    "median",
    "best",
    "p99",
    "TCP:TCP",
    "not TCP",
    "missed",
)


def _cells(row, condition, s):
    spread = lambda v: "/".join(map(number, (v.worst, v.median, v.best))) if v else ""
    return (
        *(row.name, condition.name, number(s.tcp), number(s.ours), row.unit),
        *(number(s.ratio.worst), number(s.ratio.median), number(s.ratio.best)),
        *("" if s.p99 is None else number(s.p99), spread(s.scatter), f"{100 * s.share:.0f} %"),
        "; ".join(s.missed),
    )


def line(row, condition, s, pairs):
    c = dict(zip(HEAD, _cells(row, condition, s)))
    p99 = f", p99 {c['p99']}" if c["p99"] else ""
    cpu = f", CPU a request {number(s.cpu)}" if s.cpu is not None else ""
    missed = f"; MISSED {c['missed']}" if c["missed"] else ""
    return (
        f"{row.name} {condition.name}: TCP {c['TCP']}, ours {c['ours']} {row.unit}: "
        f"worst {c['worst']}, median {c['median']}, best {c['best']} of {pairs} pairs{p99}{cpu}; "
        f"TCP beside TCP {c['TCP:TCP']}; {c['not TCP']} of the bytes not by TCP{missed}"
    )


def table(what, done):
    """`done`: (row, condition, rounds, summary) of each."""
    rows = [_cells(row, condition, s) for row, condition, _, s in done]
    wide = [max(len(r[i]) for r in [HEAD, *rows]) for i in range(len(HEAD) - 1)]
    text = ["", what, "Ratios say how many times better than TCP ours is. Every pair counts.", ""]
    for r in [HEAD, *rows]:
        text.append(
            "  ".join(
                c.ljust(w) if i in (0, 1, 4) else c.rjust(w)
                for i, (c, w) in enumerate(zip(r, wide))
            )
            + "  "
            + r[-1]
        )
    idle = [
        s.ratio.median
        for row, condition, _, s in done
        if condition.kind == "idle" and row.most is None
    ]
    if idle:
        middle, least = number(median(idle)), number(min(idle))
        text.append("")
        text.append(
            f"idle machine: the median of {len(idle)} rows' medians is {middle} (wanted 2), "
            f"the least {least} (wanted 1)"
        )
    return "\n".join(x.rstrip() for x in text)


def as_json(what, done):
    rows = [
        {
            "name": row.name,
            "title": row.title,
            "unit": row.unit,
            "beside": asdict(condition),
            "summary": asdict(s),
            "rounds": rounds,
        }
        for row, condition, rounds, s in done
    ]
    return json.dumps({"machine": what, "rows": rows}, indent=1, ensure_ascii=False) + "\n"


def listing(rows):
    wide = max(len(r.name) for r in rows)
    return "\n".join(
        f"{r.name.ljust(wide)}  {r.title}{'' if len(r.kinds) > 1 else f' ({r.kinds[0]} only)'}"
        for r in rows
    )
