"""Runs all benchmarks and writes the report.

    python benchmarks/run.py [--quick] [--only steps,eager] [--results DIRECTORY] [--report-only]

Each section writes its figures to a separate file, so that sections can be measured at different times; the report
includes all of them. TensorFlow and PyTorch take part if `make bench-peers` has installed them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from processes import ContenderError
from report import write_report
from sections.options import Figures, Options, say

SECTIONS = (
    *("start_up", "eager", "steps", "first_step", "memory"),
    *("all_reduce", "reading", "checkpoint", "planning", "jax_versions"),
)
HERE = Path(__file__).parent


def main() -> None:
    """Measures, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="take three minutes instead of thirty")
    parser.add_argument("--only", default="", help=f"sections to run, of {','.join(SECTIONS)}")
    parser.add_argument("--workloads", default="", help="workloads to run, of W1,W2,W3,W4 (W5 on a GPU)")
    parser.add_argument("--devices", default="", help="numbers of devices")
    parser.add_argument("--replicas", default="", help="numbers of replicas for the first step")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--no-peers", action="store_true", help="run only hand-written JAX and mirrored")
    parser.add_argument("--results", type=Path, default=HERE / ".results")
    parser.add_argument("--report-only", action="store_true", help="write the report from existing figures")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    if not arguments.report_only:
        measure(arguments)
    print("report:", write_report(arguments.results, HERE / "reports"))


def measure(arguments: argparse.Namespace) -> None:
    """Measures every requested section; reports and skips one that fails."""
    options = options_of(arguments)
    for name in arguments.only.split(",") if arguments.only else sections_of(arguments.quick):
        start = time.perf_counter()
        path = arguments.results / f"{name}.json"
        keep = functools.partial(store, path, path.exists() and name == "steps" and json.loads(path.read_text()))
        try:
            keep(importlib.import_module(f"sections.{name}").measure(dataclasses.replace(options, keep=keep)))
        except (ContenderError, subprocess.SubprocessError) as error:
            say(f"{name} failed: {error}")
            continue
        say(f"{name}: {time.perf_counter() - start:.0f} s")


def store(path: Path, before: Any, figures: Figures) -> None:
    """Writes a section's figures; keeps cells that were measured before and not again."""
    path.write_text(json.dumps(merged(before, figures) if before else figures, indent=1))


def sections_of(quick: bool) -> list[str]:
    """Returns the default sections."""
    return [name for name in SECTIONS if not quick or name not in ("memory", "reading", "planning", "jax_versions")]


def options_of(arguments: argparse.Namespace) -> Options:
    """Returns the options of a run."""
    quick = arguments.quick
    gpus = accelerators()
    workloads = arguments.workloads or ("W1,W4" if quick else "W1,W2,W3,W4" + (",W5" if gpus else ""))
    counts = [n for n in (1, 2, 4, 8) if not gpus or n <= gpus]
    devices = arguments.devices or ("1,4" if quick and not gpus else ",".join(map(str, counts)))
    return Options(
        quick=quick,
        workloads=tuple(workloads.split(",")),
        devices=tuple(map(int, devices.split(","))),
        rounds=arguments.rounds or (5 if quick else 24),
        peers=not arguments.no_peers,
        replicas=tuple(map(int, arguments.replicas.split(","))) if arguments.replicas else (),
    )


def accelerators() -> int:
    """Returns the number of GPUs that JAX sees, from another process: a GPU may belong to one process only."""
    code = "import jax; print(sum(d.platform == 'gpu' for d in jax.devices()))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return int(answer.stdout.split()[-1]) if answer.stdout.split() else 0


def merged(old: dict[str, list[dict[str, object]]], new: dict[str, list[dict[str, object]]]) -> dict[str, object]:
    """Returns the newest cell of each contender, workload and number of devices."""
    cells = {(c["workload"], c["devices"], c["contender"]): c for c in [*old["cells"], *new["cells"]]}
    return {"cells": list(cells.values())}


if __name__ == "__main__":
    main()
