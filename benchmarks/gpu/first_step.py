"""The first step of W4 (trace, compile, run), each contender in a fresh process without any cache."""

from __future__ import annotations

import os
import tempfile

from processes import Process

from gpu.contest import ANSWER_SECONDS, NAMES, without_torch
from gpu.recording import Recorder

_WORKLOAD = "W4"


def measure(recorder: Recorder) -> None:
    """JAX first."""
    for name in without_torch(recorder, "first step", ("jax_hand_written", "mirrored_compiled", "torch_compiled")):
        with tempfile.TemporaryDirectory() as folder, recorder.variant(f"{_WORKLOAD}, {NAMES[name]}") as figures:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = folder
            with Process(name, 1, ANSWER_SECONDS) as process:
                figures |= process.make("train", _WORKLOAD)
                figures["second_seconds"] = process.ask("measure", name=name, calls=1)["seconds"]
