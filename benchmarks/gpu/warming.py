"""Programs that take long to compile, compiled while other pieces run: `torch.compile`, and W5 on 8 virtual replicas.

Inductor keeps its kernels, XLA its programs, in folders that later pieces share; none of them is measured as a first
step. W5 on one replica is compiled by its own piece, alone: autotuning beside other processes chooses less well. The
batch of the public setting is looked for here as well.
"""

from __future__ import annotations

import threading

from processes import Process, interpreter

from gpu import fitting
from gpu.contest import ANSWER_SECONDS, VIRTUAL, Pool
from gpu.recording import Recorder

_TORCH = ("W5", "W4", "W3", "W2", "W1")


def measure(recorder: Recorder) -> None:
    """All at once."""
    threads = [threading.Thread(target=one, args=(recorder,)) for one in (_by_torch, _by_jax, _batch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _by_torch(recorder: Recorder) -> None:
    if interpreter("torch_compiled") is None:
        recorder.left_out("torch.compile", "PyTorch is not installed")
        return
    with Pool() as pool:
        for workload in _TORCH:
            with recorder.variant(f"torch.compile, {workload}") as figures:
                process = pool.process("torch_compiled")
                figures |= process.make("train", workload)
                process.ask("drop", name="torch_compiled")


def _by_jax(recorder: Recorder) -> None:
    with (
        Process("mirrored_compiled", 1, ANSWER_SECONDS) as process,
        recorder.variant(f"W5 on {VIRTUAL} virtual replicas") as figures,
    ):
        figures |= process.make("train", "W5", replicas=VIRTUAL)


def _batch(recorder: Recorder) -> None:
    with recorder.variant("largest batch of W5p") as figures:
        figures |= fitting.found()
