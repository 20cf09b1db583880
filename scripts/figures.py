"""Makes the table of docs/performance.md of the JSON lines that scripts/figures.sh gathered in a folder."""

import json
import sys
from pathlib import Path
from statistics import median

# Name of the scenario, what it is, and its bar.
SCENARIOS = [
    ("chats-exact", "8,000-token chats, 200 req/s, 10 endpoints, exact tokens", "p50 ≤ 1.0, p99 ≤ 4, ≤ 0.8 CPU-ms"),
    ("chats-estimate", "the same, tokens estimated", "≤ 0.45 CPU-ms"),
    ("full", "the same as a closed loop of 16, exact", ""),
    ("fleet", "the same at 50 req/s, 100 endpoints, exact", "as with 10"),
    ("idle", "idle, 100 endpoints", "≤ 0.05 core"),
    ("large-exact", "220 KB bodies, closed loop of 16, exact", "≥ 1,000 req/s"),
    ("large-estimate", "the same, tokens estimated", "≥ 1,500 req/s"),
    ("events", "300 events an answer, one each 10 ms, 20 req/s", "≤ 3 CPU-ms"),
    ("busy-events", "300 events an answer, closed loop of 16", ""),
    ("long", "100,000-token prompts, 100 req/s, 100 endpoints", "≤ 2 cores, ≤ 500 MiB"),
]


def figure(runs, *path):
    """The median of a figure over all runs that have it, or None."""
    values = []
    for run in runs:
        for key in path:
            run = run.get(key) if run else None
        if run is not None:
            values.append(run)
    return median(values) if values else None


def shown(value, digits):
    return "" if value is None else f"{value:,.{digits}f}"


def main():
    folder = Path(sys.argv[1])
    print("| load | TLS | req/s | pick p50 ms | p99 ms | CPU-ms a request | cores | MiB | bar |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    loads, failed = [], 0
    for name, what, bar in SCENARIOS:
        for tls, word in (("insecure", "on"), ("off", "off")):
            file = folder / f"{name}-{tls}.json"
            if not file.exists():
                continue
            runs = [json.loads(line) for line in file.read_text().splitlines()]
            loads += [run["load_average"] for run in runs if run["load_average"] is not None]
            failed += sum(sum(run["errors"].values()) for run in runs)
            cells = [
                what,
                word,
                shown(figure(runs, "requests_per_second"), 0),
                shown(figure(runs, "pick_ms", "p50"), 2),
                shown(figure(runs, "pick_ms", "p99"), 2),
                shown(figure(runs, "picker", "cpu_ms_per_request"), 2),
                shown(figure(runs, "picker", "cores"), 3),
                shown(figure(runs, "picker", "resident_mib"), 0),
                bar,
            ]
            print(f"| {' | '.join(cells)} |")
    if loads:
        print(f"\nLoad average {min(loads):.1f} to {max(loads):.1f} (median {median(loads):.1f}); {failed} exchanges failed.")


main()
