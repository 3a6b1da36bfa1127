"""The table of scripts/bench-verbs: `verbs.py FIGURES JSON`, FIGURES as tests/bench/verbs.sh writes
them."""
import json
import pathlib
import statistics
import sys


def main(figures, out):
    cells, other = {}, "upstream"
    for line in pathlib.Path(figures).read_text().split("\n"):
        if line:
            device, cell, library, figure = line.split()
            other = library if library != "ours" else other
            runs = cells.setdefault((device, cell), {})
            runs.setdefault(library, []).append(None if figure == "-" else float(figure))
    ratios, rows = [], []
    failed = False
    print(f"{'':34}{other:>12}{'ours':>12}   ratio (each round)")
    for (device, cell), runs in cells.items():
        runs = {other: runs.get(other, []), "ours": runs.get("ours", [])}
        lower = cell.startswith("latency")
        medians = {}
        for library, all_of_them in runs.items():
            known = [f for f in all_of_them if f]
            medians[library] = statistics.median(known) if known else None
        failed = failed or None in runs["ours"]
        pairs = [(u / o if lower else o / u) for u, o in zip(runs[other], runs["ours"]) if u and o]
        ratio = statistics.median(pairs) if pairs else None
        rows.append({"device": device, "cell": cell, **runs, "ratio": ratio})
        if pairs and cell != "iperf3":
            ratios.append(ratio)
        text = {k: "fails" if v is None else f"{v:.3g} {'µs' if lower else 'Gb/s'}" for k, v in medians.items()}
        said = f"{ratio:.2f}  ({' '.join(f'{p:.2f}' for p in pairs)})" if pairs else "-"
        print(f"{device + ' ' + cell:34}{text[other]:>12}{text['ours']:>12}   {said}")
    if ratios:
        print(f"median of rstream's cells: {statistics.median(ratios):.2f}, least {min(ratios):.2f}")
    pathlib.Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failed or not cells else 0


sys.exit(main(*sys.argv[1:]))
