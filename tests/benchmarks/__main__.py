"""All speed benchmarks: ``python -m tests.benchmarks [--quick] [--json FILE]``; ``make bench`` and ``make bench-quick``.

Each runs in a process of its own, pinned to one core (two where it says so); the bars are those that hierfl set itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.harness import Row, pinned

QUICK = (("start_up", 1, ()), ("saddle", 1, ()), ("scale", 1, ("10000",)))
ALL = (
    ("start_up", 1, ()),
    ("travel", 1, ()),
    ("program_size", 1, ()),
    ("lower_level", 1, ()),
    ("end_to_end", 1, ()),
    ("cournot", 1, ()),
    ("cournot", 2, ()),
    ("saddle", 1, ()),
    ("scale", 1, ()),
    ("seeds", 2, ()),
    ("cores", 2, ()),
)


def main() -> None:
    """Print the table and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the short ones: about a minute")
    parser.add_argument("--json", type=Path, default=Path("results/benchmarks.json"), help="where the figures go")
    chosen = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    print(f"{platform.processor() or platform.machine()}, {len(cores)} cores; ratios of least times, taken in turn\n")
    rows: list[Row] = []
    for module, count, arguments in QUICK if chosen.quick else ALL:
        if count > len(cores):
            print(f"{module} on {count} cores: left out, there are {len(cores)}")
            continue
        began = time.perf_counter()
        found = pinned(module, cores[-count:], *arguments)
        rows += found
        print("\n".join(map(str, found)), f"  ({time.perf_counter() - began:.0f} s)\n", sep="\n", flush=True)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps([{**asdict(row), "reached": row.reached} for row in rows], indent=2))
    print(f"{sum(row.reached for row in rows)} of {len(rows)} bars reached; figures in {chosen.json}")


if __name__ == "__main__":
    main()
