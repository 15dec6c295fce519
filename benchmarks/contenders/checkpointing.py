"""How long saving holds up a training loop: in the background by mirrored, and by `numpy.savez` in the loop."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
from spec import Workload

import mirrored as mr
from contenders.job import Job
from mirrored.checkpoint import Checkpoint, CheckpointManager


def _variables(workload: Workload, devices: int) -> list[mr.Variable]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices])
    with strategy.scope():
        return [mr.Variable(value) for value in workload.parameters().values() for _ in range(3)]


def in_background(workload: Workload, devices: int) -> Job:
    """`CheckpointManager.save` of parameters and two slots each; only the call is in the loop."""
    folder = tempfile.mkdtemp()
    variables = _variables(workload, devices)
    manager = CheckpointManager(Checkpoint(variables=variables), folder, max_to_keep=1)
    steps = itertools.count(1)

    def before(calls: int) -> None:
        manager.wait()

    return Job(lambda: manager.save(next(steps)), before=before)


def in_the_loop(workload: Workload, devices: int) -> Job:
    """The same state by `numpy.savez`, as a script would."""
    folder = Path(tempfile.mkdtemp())
    variables = _variables(workload, devices)

    def call() -> None:
        np.savez(folder / "new.npz", *[np.asarray(variable.read_value()) for variable in variables])
        shutil.move(folder / "new.npz", folder / "newest.npz")

    return Job(call)
