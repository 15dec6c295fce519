"""The eager tape, per operation, forward plus backward, beside PyTorch's autograd and un-jitted `jax.grad`."""

from __future__ import annotations

from gpu.contest import NAMES, TINY, Entrant, Pool, without_torch
from gpu.recording import Recorder

_NAMES = ("mirrored_compiled", "mirrored_eager", "torch_ddp", "jax_hand_written")
_ROUNDS = 2 if TINY else 12


def measure(recorder: Recorder) -> None:
    """A chain of 200 scalar operations; un-jitted `jax.grad`, which is slow, is called once in each round."""
    names = without_torch(recorder, "eager tape", _NAMES)
    with Pool() as pool:
        entrants = [Entrant(pool.process(name), name) for name in names]
        for entrant in entrants:
            with recorder.variant(f"eager tape, {NAMES[entrant.name]}, first call") as figures:
                entrant.prepare("W1", "eager_tape")
                entrant.calls = 1 if TINY or entrant.name == "jax_hand_written" else 4
                figures |= entrant.figures
        for _ in range(_ROUNDS):
            for entrant in entrants:
                entrant.time("measure")
        for entrant in entrants:
            with recorder.variant(f"eager tape, {NAMES[entrant.name]}") as figures:
                if entrant.failure is not None:
                    raise entrant.failure
                figures |= entrant.figures
