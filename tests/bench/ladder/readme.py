"""The table of figures in README.md, made from docs/bench.json: `readme.py` writes it, `readme.py
--check` says whether it is what would be written."""
import json
import os
import sys

ROOT = os.environ.get("ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
BEGIN, END = "<!-- figures: scripts/bench --publish -->\n", "<!-- end of figures -->\n"
# Row, the program in the reader's words.
ROWS = [
    ("blocking", "64 bytes there and back, blocking"),
    ("redis-1", "redis-benchmark, 1 connection"),
    ("redis-50", "redis-benchmark, 50 connections"),
    ("nginx-1k", "nginx and wrk, 1 KiB"),
    ("nginx-1m", "nginx and wrk, 1 MiB"),
    ("iperf3", "iperf3, one stream"),
    ("close-wrk", "nginx and wrk, a connection for each request"),
]


def figure(number, unit):
    """A measured number with three digits that count."""
    text = f"{number:.3g}" if number < 1000 else f"{number:.0f}"
    return f"{text} {unit}"


def table(bench):
    rows = {row["name"]: row for row in bench["rows"]}
    lines = ["| idle machine | kernel TCP | ours | times |", "| --- | --- | --- | --- |"]
    for name, words in ROWS:
        m = rows[name]["metrics"][0]
        label = words + (f", {m['title']}" if m["title"] else "")
        pair = [figure(m[side], m["unit"]) for side in ("baseline", "ours")]
        lines.append(f"| {label} | {pair[0]} | {pair[1]} | {m['times_better']:.1f} |")
    return "\n".join(lines) + f"\n\n{bench['machine'].rsplit(', load', 1)[0]}.\n"


def with_table(readme, bench):
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(bench) + END + after


def main():
    path = os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as f:
        readme = f.read()
    with open(os.path.join(ROOT, "docs/bench.json"), encoding="utf-8") as f:
        wanted = with_table(readme, json.load(f))
    if "--check" in sys.argv:
        sys.exit(readme != wanted and "README.md has other figures than docs/bench.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(wanted)


if __name__ == "__main__":
    main()
