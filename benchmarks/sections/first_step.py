"""First step (trace, compile, run) against the number of replicas, each in a fresh process, with peak memory."""

from __future__ import annotations

from typing import Any

from processes import ContenderError, Process

from sections.options import Figures, Options, say

_WORKLOAD = "W4b"


def measure(options: Options) -> Figures:
    """Returns one line for each process."""
    lines: list[dict[str, Any]] = []
    replicas = options.replicas or ((1, 8) if options.quick else (1, 2, 4, 8, 16, 32, 64))
    for repeat in range(1 if options.quick or options.replicas else 3):
        for count in replicas:
            names = ["jax_hand_written", "mirrored_compiled"]
            if options.peers and repeat == 0 and count <= (8 if options.quick else 32):
                names.append("tensorflow_mirrored")
            for name in names if repeat % 2 == 0 else names[::-1]:
                lines += _line(name, count)
                options.keep({"workload": _WORKLOAD, "lines": lines})
    return {"workload": _WORKLOAD, "lines": lines}


def _line(name: str, replicas: int) -> list[dict[str, Any]]:
    try:
        with Process(name, replicas) as process:
            made = process.make("train", _WORKLOAD)
            second = process.ask("measure", name=name, calls=1)["seconds"]
            memory = process.ask("memory")["mib"]
    except ContenderError as error:
        say(f"  {name} is skipped: {str(error)[:300]}")
        return []
    say(f"first step: {name} on {replicas}: {made['first_seconds']:.2f} s")
    return [
        {
            "contender": name,
            "replicas": replicas,
            "seconds": made["first_seconds"],
            "second_call_seconds": second,
            "peak_mib": memory,
        }
    ]
