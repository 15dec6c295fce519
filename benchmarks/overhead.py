"""Overhead of the programming model: a compiled step next to hand-written `jit(shard_map)`, in one process.

    python benchmarks/overhead.py [--rounds 60] [--json FILE]

Both train the same MLP with Adam on the same batch over the same devices. Times are paired round by round; the figure
is the median ratio with a 95 % interval. Also counts all-reduce operations in the optimized HLO, and traces.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MIRRORED_VIRTUAL_DEVICES", "4")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import numpy as np
from contenders import jax_hand_written, mirrored_training
from contenders.job import Job
from pairing import Paired, pair
from rich.console import Console
from rich.table import Table
from spec import WORKLOADS

CASES = (("W1", 1, 40), ("W1", 4, 40), ("W2", 1, 4), ("W2", 4, 4))
"""Workloads, devices, and the number of calls per timing."""


def step_of(job: Job) -> Callable[[], None]:
    """Returns a function that runs one training step and waits for it."""
    launch, wait = job.launch, job.wait
    assert launch is not None
    assert wait is not None
    return lambda: wait(launch())


def drift(a: Job, b: Job) -> float:
    """Returns the distance of two trainings' weights relative to their norms, without biases, which start at zero."""
    ours, theirs = a.weights(), b.weights()
    return max(
        float(np.linalg.norm(ours[k] - np.asarray(theirs[k])) / np.linalg.norm(theirs[k]))
        for k in ours
        if k.endswith(".w")
    )


def measure(name: str, devices: int, calls: int, rounds: int) -> dict[str, Any]:
    """Times both on one workload, and checks that their results agree."""
    work = WORKLOADS[name]
    theirs, ours = jax_hand_written.train(work, devices), mirrored_training.train(work, devices)
    paired: Paired = pair(step_of(ours), step_of(theirs), rounds=rounds, calls=calls)
    differ = drift(ours, theirs)
    low, high = paired.interval
    facts = ours.facts()
    return {
        "workload": work.title.removeprefix("MLP "),
        "devices": devices,
        "ours_ms": 1e3 * sorted(paired.ours_seconds)[rounds // 2],
        "theirs_ms": 1e3 * sorted(paired.theirs_seconds)[rounds // 2],
        "ratio": paired.ratio,
        "low": low,
        "high": high,
        "target": work.target,
        "met": paired.ratio <= work.target,
        "all_reduces": (facts["all_reduces"], theirs.facts()["all_reduces"]),
        "replica_traces": facts["traces"],
        "weights_differ_by": differ,
    }


def main() -> None:
    """Measures all workloads and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results = [measure(*case, options.rounds) for case in CASES]
    table = Table(
        "workload", "devices", "ours ms", "hand-written ms", "ratio", "95 %", "target", "met", "all-reduces", "traces"
    )
    for r in results:
        table.add_row(
            r["workload"],
            str(r["devices"]),
            f"{r['ours_ms']:.3f}",
            f"{r['theirs_ms']:.3f}",
            f"{r['ratio']:.3f}",
            f"{r['low']:.3f} to {r['high']:.3f}",
            str(r["target"]),
            "yes" if r["met"] else "no",
            "{} / {}".format(*r["all_reduces"]),
            str(r["replica_traces"]),
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
