"""Restores from damaged folders, and saves to one that another job has: ``restoring.py FOLDER HOW...``."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import mirrored as mr
from checkpoint.damages import damage
from mirrored.checkpoint import Checkpoint, CheckpointManager, restoring
from mirrored.collectives.host_allgather import host_barrier
from mirrored.errors import CheckpointError, DamagedCheckpointError

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
folder = Path(sys.argv[1])
with strategy.scope():
    v = mr.Variable(np.zeros(50_000, np.float32))


def manager_of(name: str) -> CheckpointManager:
    return CheckpointManager(Checkpoint(v=v), folder / name)


def saved(name: str) -> None:
    """Saves steps 1 to 3, each with its number as the value."""
    manager = manager_of(name)
    for step in (1, 2, 3):
        v.assign(np.random.default_rng(step).normal(size=50_000).astype(np.float32))
        manager.save(step)
    manager.wait()
    v.assign(np.zeros(50_000, np.float32))


def restored(name: str) -> list[Any]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step = manager_of(name).restore_latest()
    expected = np.random.default_rng(step).normal(size=50_000).astype(np.float32)
    return [step, bool((v.numpy() == expected).all()), [str(one.message) for one in told]]


found: dict[str, Any] = {}
for how in sys.argv[2:]:
    saved(how)
    if me == 0:
        damage(folder / how / "ckpt-3", how)
    host_barrier("test", f"damaged {how}")
    found[how] = restored(how)

# A disk of one worker alone gives other bytes.
saved("one worker")
verify = restoring.verify_files


def verify_on_a_bad_disk(directory: Path, manifest: Any) -> None:
    if me == 1 and directory.name == "ckpt-3":
        raise DamagedCheckpointError("reading", found="other bytes", rule="", remedy="")
    verify(directory, manifest)


restoring.verify_files = verify_on_a_bad_disk
found["one worker"] = restored("one worker")

before = v.numpy()
try:
    manager_of("taken").save(1)
except CheckpointError as error:
    found["taken"] = [error.found, bool((v.numpy() == before).all())]
print("RESULT", json.dumps(found), flush=True)
