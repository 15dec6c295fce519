"""W1 to W4: mirrored, hand-written JAX, PyTorch eager and by `torch.compile`, on one GPU."""

from __future__ import annotations

from gpu.contest import TINY, Pool, contend, prepared, without_torch
from gpu.recording import Recorder

_NAMES = ("jax_hand_written", "mirrored_compiled", "torch_ddp", "torch_compiled")
_WORKLOADS = ("W2", "W1", "W4", "W3")  # `torch.compile` takes 50 s for W4, half of the limit of the piece
_ROUNDS = 2 if TINY else 8


def measure(recorder: Recorder) -> None:
    """Each workload for itself, so that a piece that is cut off keeps the first ones."""
    names = without_torch(recorder, "W1 to W4", _NAMES)
    with Pool() as pool:
        for workload in _WORKLOADS:
            entrants = prepared(recorder, workload, pool, names, workload)
            contend(recorder, workload, entrants, _ROUNDS, ("stream", "measure"))
