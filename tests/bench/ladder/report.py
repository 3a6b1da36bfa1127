"""What people and programs read: a line as each row is done, one table at the end, JSON. Pure
functions."""

import json


def number(x):
    if x == 0 or 0.01 <= abs(x) < 100:
        return f"{x:.3g}"
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.2g}"


def title(row, metric):
    return f"{row.title}{', ' if metric.title else ''}{metric.title}"


def verdict(result):
    """Each target with what was reached; figures that are not fair say so and decide nothing."""
    if not result.verdicts:
        return ""
    said = "; ".join(f"{'met' if met else 'MISSED'}: {what} (wanted {t.says()})" for t, what, met in result.verdicts)
    return said if result.fair else f"not fair: {said}"


def _spread(result):
    return f"{number(result.low)}..{number(result.high)}"


def line(row, result):
    m = result.metric
    return (
        f"{row.name}: {title(row, m)}: {row.baseline} {number(result.baseline)}, ours {number(result.ours)} {m.unit}, "
        f"{number(result.ratio)} × [{_spread(result)}, {result.pairs} of {result.of} pairs] {verdict(result)}"
    ).rstrip()


def table(what, limits, results):
    """One table; each of our figures beside its counterpart of the same run."""
    head = ("row", "baseline", "ours", "unit", "ratio", "spread", "pairs", "targets")
    rows = []
    for row, of_row in results:
        for r in of_row:
            name = title(row, r.metric) + ("" if row.baseline == "tcp" else f" (beside {row.baseline})")
            pairs = f"{r.pairs}/{r.of}{'' if r.fair else ' ~'}"
            rows.append(
                (name, number(r.baseline), number(r.ours), r.metric.unit, f"{number(r.ratio)} ×", _spread(r), pairs, verdict(r))
            )
    wide = [max(len(x[i]) for x in [head, *rows]) for i in range(len(head) - 1)]
    text = ["", what, f"a cache line there and back: {limits['line_ns']:.0f} ns at best, {limits['line_now_ns']:.0f} ns at the beginning; "
            f"a ring of two copies between two cores: {limits['ring_mb_s']:.0f} MB/s", ""]  # fmt: skip
    for r in [head, *rows]:
        text.append("  ".join(c.ljust(wide[i]) if i == 0 else c.rjust(wide[i]) for i, c in enumerate(r[:-1])) + "  " + r[-1])
    text.append("")
    text.append("baseline: kernel TCP unless the row says otherwise. ~: taken while the machine was slow, changed its speed, or was used by others")
    return "\n".join(x.rstrip() for x in text)


def listing(rows):
    wide = max(len(r.name) for r in rows)
    text = []
    for r in rows:
        wanted = "; ".join(f"{m.title + ' ' if m.title else ''}{t.says()}" for m in r.metrics for t in m.targets)
        text.append(f"{r.name.ljust(wide)}  {r.title}{': ' + wanted if wanted else ''}")
    return "\n".join(text)


def as_json(what, limits, taken, results):
    done = {row.name: of_row for row, of_row in results}
    rows = []
    for row, pairs in taken:
        rows.append(
            {
                "name": row.name,
                "title": row.title,
                "baseline": row.baseline,
                "transport": row.transport or "default",
                "metrics": [
                    {
                        "name": r.metric.key,
                        "title": r.metric.title,
                        "unit": r.metric.unit,
                        "less_is_better": r.metric.less,
                        "baseline": r.baseline,
                        "ours": r.ours,
                        "times_better": r.ratio,
                        "spread": [r.low, r.high],
                        "pairs": r.pairs,
                        "of": r.of,
                        "fair": r.fair,
                        "targets": [{"wanted": t.says(), "reached": what_, "met": met} for t, what_, met in r.verdicts],
                    }
                    for r in done[row.name]
                ],
                "pairs": [
                    [{"values": c.values, "line_ns": c.lines, "others": round(c.others, 3), "ring_mb_s": c.ring} for c in p]
                    for p in pairs
                ],
            }
        )
    return json.dumps({"machine": what, "limits": limits, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
