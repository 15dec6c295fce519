"""GPT-2 124M at the public setting, at the largest batch that fits: each contender in turn, alone on the GPU.

Contenders of JAX share a process, one after the other: what one has autotuned the next takes over.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from processes import ContenderError

from gpu import fitting
from gpu.contest import NAMES, TINY, TORCH, Entrant, Pool, without_torch
from gpu.recording import Recorder, say

_NAMES = ("jax_hand_written", "mirrored_compiled", "torch_compiled")
_TIMINGS = 2 if TINY else 5
_ATTEMPTS = 3


def measure(recorder: Recorder) -> None:
    """Finds the batch, then measures each contender at it, or at the next smaller one that it can hold."""
    batches = [batch for batch in fitting.CANDIDATES if TINY or batch <= 64]
    with recorder.variant("largest batch") as figures:
        figures |= fitting.found()
        batches = [batch for batch in fitting.CANDIDATES if batch <= figures["batch"]]
    names = without_torch(recorder, "W5p", _NAMES)
    for group in ([name for name in names if name not in TORCH], [name for name in names if name in TORCH]):
        with Pool() as pool:
            for name in group:
                with recorder.variant(f"W5p, {NAMES[name]}") as figures:
                    figures |= _at_largest(pool, name, batches[:_ATTEMPTS])


def _at_largest(pool: Pool, name: str, batches: Sequence[int]) -> dict[str, Any]:
    """Its figures at the first of the batches that it can hold."""
    tried: dict[str, str] = {}
    for batch in batches:
        process = pool.process(name)
        entrant = Entrant(process, name)
        try:
            entrant.prepare(f"W5p@{batch}")
            for _ in range(_TIMINGS):
                entrant.time("stream")
            if entrant.failure is not None:
                raise entrant.failure
            program = process.ask("facts", name=entrant.key)
            return {**entrant.figures, "batch": batch, "did_not_fit": tried, **program, **process.ask("device")}
        except Exception as error:  # most likely out of memory: the next smaller one
            tried[str(batch)] = str(error)[-600:]
            say(f"    {name} at {batch}: {tried[str(batch)]}")
        finally:
            with contextlib.suppress(ContenderError):  # the process has ended
                process.ask("drop", name=entrant.key)
    raise RuntimeError(json.dumps(tried, indent=1))
