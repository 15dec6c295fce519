"""Peak resident memory of a training process, each contender in a fresh one."""

from __future__ import annotations

from typing import Any

from processes import ContenderError, Process

from sections.options import Figures, Options, say

_CONTENDERS = ("jax_hand_written", "mirrored_compiled", "mirrored_deterministic")
_PEERS = ("keras_data_parallel", "tensorflow_mirrored", "torch_ddp")
_DEVICES = 4


def measure(options: Options) -> Figures:
    """Returns one line for each contender and workload."""
    lines: list[dict[str, Any]] = []
    for workload in options.workloads:
        for name in (*_CONTENDERS, *(_PEERS if options.peers else ())):
            try:
                with Process(name, _DEVICES) as process:
                    process.make("train", workload)
                    process.ask("measure", name=name, calls=5)
                    peak = process.ask("memory")["mib"]
            except ContenderError:
                continue
            say(f"memory: {workload} {name}: {peak:.0f} MiB")
            lines.append({"workload": workload, "contender": name, "peak_mib": peak})
    return {"devices": _DEVICES, "lines": lines}
