"""`mirrored plan` from a program on one device, against its step measured on several that share the machine's cores."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from processes import HERE, Process

from sections.options import Figures, Options, say

_REPEATS = 5


def measure(options: Options) -> Figures:
    """Returns one point for each workload and number of devices."""
    points: list[dict[str, Any]] = []
    for workload in options.workloads:
        say(f"planning: {workload}")
        predicted = _predicted(workload, options.devices)
        for devices in options.devices:
            with Process("mirrored_compiled", devices) as process:
                process.make("train", workload)
                seconds = [
                    process.ask("measure", name="mirrored_compiled", calls=5)["seconds"] for _ in range(_REPEATS)
                ]
            found = predicted[devices]
            points.append(
                {
                    "workload": workload,
                    "devices": devices,
                    "predicted": found["step_seconds"],
                    "measured": statistics.median(seconds),
                    "bottleneck": found["bottleneck"],
                }
            )
    return {"points": points}


def _predicted(workload: str, devices: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    counts = ",".join(map(str, devices))
    command = [sys.executable, "-m", "mirrored.cli", "plan", str(HERE / "plan_step.py"), "--replicas", counts]
    command += ["--keep", "global-batch", "--shared", "--json", "--", workload]
    answer = subprocess.run(
        command,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": str(max(devices))},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return {one["replicas"]: one for one in json.loads(answer.stdout)}
