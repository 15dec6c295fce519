"""The all-reduce of one buffer per replica."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from processes import ContenderError, Process

from sections.options import Figures, Options, say
from sections.rounds import Entrant, contest

_TOGETHER = ("jax_hand_written", "mirrored_compiled", "mirrored_deterministic")
_PEERS = ("tensorflow_mirrored", "torch_ddp")


def measure(options: Options) -> Figures:
    """Returns one cell for each size, number of devices and contender."""
    cells: list[dict[str, Any]] = []
    for mib in (1, 16) if options.quick else (1, 16, 64):
        for devices in (4,) if options.quick else (2, 4, 8):
            say(f"all-reduce: {mib} MiB on {devices}")
            with ExitStack() as stack:
                ours = stack.enter_context(Process(_TOGETHER[0], devices))
                entrants = [Entrant(name, ours) for name in _TOGETHER]
                for peer in _PEERS if options.peers else ():
                    try:
                        entrants.append(Entrant(peer, stack.enter_context(Process(peer, devices))))
                    except ContenderError:
                        continue
                for entrant in entrants:
                    entrant.prepare("all_reduce", "W1", mib=mib)
                contest(entrants, 4 if options.quick else 6 if mib == 64 else 12)
                cells += [
                    {"mib": mib, "devices": devices, "contender": one.name, "seconds": one.seconds}
                    for one in entrants
                    if one.failure is None
                ]
    return {"cells": cells}
