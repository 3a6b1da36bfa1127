"""The plot that the README shows: how many times better than kernel TCP each row is, on a
logarithmic scale, and what was wanted."""

from html import escape
from math import ceil, floor, log10

from .report import number, title

WIDE, LEFT, RIGHT, STEP, TOP = 900, 330, 90, 24, 74
MET, MISSED, NEUTRAL, UNFAIR = "#2f7d4f", "#c25a2b", "#4a6fa5", "#9a9a9a"


def _bars(results):
    """(title, times, wanted, colour): rows beside kernel TCP that have a ratio."""
    for row, of_row in results:
        for r in of_row:
            if row.baseline != "tcp" or row.counts or not 0 < r.ratio < 1e6:
                continue
            wanted = [t.value for t, _, _ in r.verdicts if t.kind == "better"]
            if r.verdicts and not wanted:
                continue
            colour = NEUTRAL
            if wanted:
                colour = MET if r.ratio >= wanted[0] else MISSED
            yield title(row, r.metric), r.ratio, wanted[0] if wanted else None, colour if r.fair else UNFAIR


def svg(what, results):
    bars = list(_bars(results))
    least = min([0.5] + [b[1] for b in bars])
    most = max([10] + [max(b[1], b[2] or 0) for b in bars])
    low, high = floor(log10(least) * 2) / 2, ceil(log10(most) * 2) / 2
    inner = WIDE - LEFT - RIGHT

    def x(times):
        return LEFT + inner * (log10(times) - low) / (high - low)

    tall = TOP + STEP * len(bars) + 56
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" width="{WIDE}" height="{tall}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDE}" height="{tall}" fill="#fff"/>',
        '<text x="16" y="24" font-size="16" font-weight="bold">Times better than kernel TCP on loopback, in the same run</text>',
        f'<text x="16" y="44" fill="#555">{escape(what)}</text>',
    ]
    bottom = TOP + STEP * len(bars)
    for power in range(ceil(low), floor(high) + 1):
        at = x(10.0**power)
        out.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{bottom}" stroke="{"#555" if power == 0 else "#ddd"}"/>')
        out.append(f'<text x="{at:.1f}" y="{TOP - 12}" text-anchor="middle" fill="#555">{10.0**power:g} ×</text>')
    for i, (name, times, wanted, colour) in enumerate(bars):
        y = TOP + STEP * i
        one, end = x(1), x(times)
        out.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        out.append(
            f'<rect x="{min(one, end):.1f}" y="{y + 4}" width="{max(1, abs(end - one)):.1f}" height="{STEP - 9}" fill="{colour}"/>'
        )
        if wanted:
            at = x(wanted)
            out.append(f'<line x1="{at:.1f}" y1="{y + 1}" x2="{at:.1f}" y2="{y + STEP - 2}" stroke="#000" stroke-width="2"/>')
        after = max(end, x(wanted) if wanted else end, one)
        out.append(f'<text x="{after + 6:.1f}" y="{y + 15}">{number(times)} ×</text>')
    legend = (
        f"Bar: median of the pairs. Black mark: what is wanted. Green: reached; red: missed; blue: nothing wanted; "
        f"grey: the machine was slow or in use."
    )
    out.append(f'<text x="16" y="{bottom + 26}" fill="#555">{legend}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
