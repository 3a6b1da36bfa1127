"""The table of scripts/bench-verbs: `verbs.py FIGURES JSON`, FIGURES as tests/bench/verbs.sh writes
them."""
import json
import pathlib
import statistics
import sys


def main(figures, out):
    cells = {}
    for line in pathlib.Path(figures).read_text().split("\n"):
        if line:
            device, cell, library, figure = line.split()
            runs = cells.setdefault((device, cell), {"upstream": [], "ours": []})
            runs[library].append(None if figure == "-" else float(figure))
    ratios = []
    failed = False
    print(f"{'':34}{'upstream':>12}{'ours':>12}   ratio (each round)")
    for (device, cell), runs in cells.items():
        lower = cell.startswith("latency")
        medians = {}
        for library, all_of_them in runs.items():
            known = [f for f in all_of_them if f]
            medians[library] = statistics.median(known) if known else None
        failed = failed or None in runs["ours"]
        pairs = [(u / o if lower else o / u) for u, o in zip(runs["upstream"], runs["ours"]) if u and o]
        runs["ratio"] = statistics.median(pairs) if pairs else None
        if pairs and cell != "iperf3":
            ratios.append(runs["ratio"])
        text = {k: "fails" if v is None else f"{v:.3g} {'µs' if lower else 'Gb/s'}" for k, v in medians.items()}
        said = f"{runs['ratio']:.2f}  ({' '.join(f'{p:.2f}' for p in pairs)})" if pairs else "-"
        print(f"{device + ' ' + cell:34}{text['upstream']:>12}{text['ours']:>12}   {said}")
    if ratios:
        print(f"median of rstream's cells: {statistics.median(ratios):.2f}, least {min(ratios):.2f}")
    rows = [{"device": d, "cell": c, **runs} for (d, c), runs in cells.items()]
    pathlib.Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failed or not cells else 0


sys.exit(main(*sys.argv[1:]))
