"""What an elastic job costs without failures: step times with and without `session.commit()`, by k and donation.

    python benchmarks/elastic_cost.py [--workers 2] [--workloads W2,W4] [--rounds 8] [--every default,1,10,100]

The job is `mirrored run --elastic`. Steps without a session and steps with one alternate in the same processes; a
timing spans whole intervals of k steps. The last column is the median of the rounds' ratios of step times, with the
interquartile range. The target is 1.02 at the default k.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from multi_worker import ratio
from spec import WORKLOADS

HERE = Path(__file__).parent


def measured(workload: str, workers: int, rounds: int, every: str) -> dict[str, Any]:
    """Returns the figures of a workload: see elastic_program.py."""
    command = [sys.executable, "-m", "mirrored.cli", "run", "--elastic", "--workers", str(workers)]
    source = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": source, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    program = [str(HERE / "elastic_program.py"), workload, str(rounds), every]
    limit = 300 * rounds  # seconds; one round takes one with an idle machine and a small k, and a minute with k = 1,000
    print(f"measuring {workload}: {2 + len(every.split(','))} settings, {rounds} rounds each", file=sys.stderr)
    done = subprocess.run(
        [*command, *program], env=environment, capture_output=True, text=True, timeout=limit, check=False
    )
    found = re.search(r"RESULT (.*)", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{workload} on {workers} workers: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--workloads", default="W2,W4")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--every", default="default,1,10,100")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {options.workers} workers\n")
    print("| workload | k | donation | bytes copied per step: devices + host | ms without | ms with | ratio |")
    print("|---" * 7 + "|")
    for workload in options.workloads.split(","):
        figures = measured(workload, options.workers, options.rounds, options.every)
        for one in figures["settings"]:
            copied = figures["state_bytes"] / one["every"]
            devices = copied if one["donates"] else 0.0
            without, with_ = (1e3 * statistics.median(one[name]) for name in ("without", "with"))
            k = f"{one['every']} (default)" if one["is_default"] else one["every"]
            print(
                f"| {workload} {WORKLOADS[workload].title} | {k} | {'yes' if one['donates'] else 'no'} | "
                f"{devices / 1e3:.0f} kB + {copied / 1e3:.0f} kB | {without:.2f} | {with_:.2f} | "
                f"{ratio(one['with'], one['without'])} |",
                flush=True,
            )
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
