"""Steps on the newest JAX against the same steps on the previous one: each in a separate process, timed in turn."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from processes import ContenderError, Process, previous_interpreter

from sections.options import Figures, Options, say
from sections.rounds import Entrant, contest

_CONTENDERS = ("jax_hand_written", "mirrored_compiled")


def measure(options: Options) -> Figures:
    """Returns one cell for each contender, JAX version, workload and number of devices.

    Raises:
        ContenderError: The previous JAX is not installed.
    """
    if previous_interpreter() is None:
        raise ContenderError("the previous JAX is not installed (make bench-previous)")
    cells: list[dict[str, Any]] = []
    for workload in options.workloads:
        for devices in options.devices:
            say(f"jax_versions: {workload} on {devices}")
            cells += _cell(options, workload, devices)
            options.keep({"cells": cells})
    return {"cells": cells}


def _cell(options: Options, workload: str, devices: int) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        entrants: list[tuple[str, Entrant]] = []
        for python in (None, previous_interpreter()):
            process = stack.enter_context(Process(_CONTENDERS[0], devices, python=python))
            version = process.ask("versions", packages=["jax"])["jax"]
            entrants += [(version, Entrant(name, process)) for name in _CONTENDERS]
        for _, entrant in entrants:
            entrant.prepare("train", workload)
        contest([entrant for _, entrant in entrants], options.rounds)
        return [
            {
                "workload": workload,
                "devices": devices,
                "contender": entrant.name,
                "jax": version,
                "seconds": entrant.seconds,
                "first_seconds": entrant.first.get("first_seconds"),
            }
            for version, entrant in entrants
            if entrant.failure is None
        ]
