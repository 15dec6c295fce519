"""How long a checkpoint stalls the training loop."""

from __future__ import annotations

import statistics

from processes import Process

from sections.options import Figures, Options, say

_JOBS = ("in_background", "in_the_loop")
_WORKLOAD, _DEVICES = "W2", 4


def measure(options: Options) -> Figures:
    """Returns seconds per call, saving alternately in the background and in the loop."""
    say("checkpoint stall")
    seconds: dict[str, list[float]] = {job: [] for job in _JOBS}
    with Process("checkpointing", _DEVICES) as process:
        for job in _JOBS:
            arguments = dict(contender="checkpointing", job=job, workload=_WORKLOAD, devices=_DEVICES)
            process.ask("make", name=job, **arguments)
        for _ in range(5 if options.quick else 15):
            for job in _JOBS:
                seconds[job].append(process.ask("measure", name=job, calls=1)["seconds"])
    ratios = [a / b for a, b in zip(*(seconds[job] for job in _JOBS), strict=True)]
    return {"workload": _WORKLOAD, "devices": _DEVICES, "seconds": seconds, "ratio": statistics.median(ratios)}
