"""Steady training steps: every contender, workload and number of devices; dispatch; facts about compiled programs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from processes import ContenderError, Process

from sections.options import Figures, Options, say
from sections.rounds import Entrant, contest

# These run in one process with hand-written JAX, so that only the code differs.
_TOGETHER = ("jax_hand_written", "mirrored_compiled", "mirrored_deterministic")
_PEERS = ("tensorflow_mirrored", "torch_ddp", "keras_data_parallel")
_EAGER_ROUNDS, _EAGER_DEVICES = 3, (1, 4)


def measure(options: Options) -> Figures:
    """Returns one cell for each contender, workload and number of devices."""
    cells: list[dict[str, Any]] = []
    for workload in options.workloads:
        for devices in options.devices:
            say(f"steps: {workload} on {devices}")
            cells += _cell(options, workload, devices)
            options.keep({"cells": cells})
    return {"cells": cells}


def _cell(options: Options, workload: str, devices: int) -> list[dict[str, Any]]:
    names = [*_TOGETHER, *(["mirrored_many_steps"] if workload == "W1" else [])]
    skipped, slow = [], []
    with ExitStack() as stack:
        ours = stack.enter_context(Process(_TOGETHER[0], devices))
        entrants = [Entrant(name, ours) for name in names]
        for peer in _PEERS if options.peers else ():
            try:
                entrants.append(Entrant(peer, stack.enter_context(Process(peer, devices))))
            except ContenderError as error:
                skipped.append({"workload": workload, "devices": devices, "contender": peer, "skipped": str(error)})
        if devices in _EAGER_DEVICES and not options.quick:
            eager = Entrant("mirrored_eager", stack.enter_context(Process("mirrored_eager", devices)))
            eager.prepare("train", workload)
            eager.calls = min(eager.calls, 2)
            contest([eager], _EAGER_ROUNDS)
            slow.append(eager)
        for entrant in entrants:
            entrant.prepare("train", workload)
        contest(entrants, options.rounds)
        return [_figures(workload, devices, entrant) for entrant in [*entrants, *slow]] + skipped


def _figures(workload: str, devices: int, entrant: Entrant) -> dict[str, Any]:
    cell: dict[str, Any] = {"workload": workload, "devices": devices, "contender": entrant.name}
    if entrant.failure is not None:
        return {**cell, "skipped": entrant.failure[:200]}
    try:
        dispatch = entrant.process.ask("dispatch", name=entrant.name, calls=min(10, 2 * entrant.calls))["seconds"]
        facts = entrant.process.ask("facts", name=entrant.name)
    except ContenderError as error:
        return {**cell, "skipped": str(error)[:200]}
    return {
        **cell,
        "seconds": entrant.seconds,
        "dispatch_seconds": dispatch,
        "first_loss": entrant.first.get("result"),
        **facts,
    }
