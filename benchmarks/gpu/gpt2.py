"""W5 as the benchmark specification has it: mirrored, hand-written JAX and `torch.compile` in interleaved rounds."""

from __future__ import annotations

from gpu.contest import TINY, TORCH, XLA_ATTENTION, Pool, contend, facts, prepared, without_torch
from gpu.recording import Recorder

_NAMES = ("jax_hand_written", "mirrored_compiled", "torch_compiled", "torch_ddp")
_ROUNDS = 2 if TINY else 10


def measure(recorder: Recorder) -> None:
    """First steps, then rounds; memory last, since it asks for the compiled programs again.

    Should a contender of JAX fail with cuDNN's attention, both take XLA's, and are labelled so.
    """
    names = without_torch(recorder, "W5", _NAMES)
    ours = [name for name in names if name not in TORCH]
    with Pool() as pool:
        label = "W5"
        entrants = prepared(recorder, label, pool, ours, "W5")
        if len(entrants) < len(ours):
            label = f"W5 {XLA_ATTENTION}"
            pool.process(ours[0]).ask("choose", attention="xla")
            entrants = prepared(recorder, label, pool, ours, "W5")
        entrants += prepared(recorder, label, pool, [name for name in names if name in TORCH], "W5")
        contend(recorder, label, entrants, _ROUNDS, ("stream",))
        facts(recorder, label, entrants)
