"""Restores that fail on one worker only, and saves of unequal steps: ``failing_restores.py FOLDER``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.data import Dataset

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
folder = Path(sys.argv[1])


class Reader:
    fails = False

    def get_state(self) -> dict[str, int]:
        return {"n": 1}

    def set_state(self, state: dict[str, int]) -> None:
        if self.fails:
            raise RuntimeError("the reader of this worker")


class Disk:
    fails = False

    def elements(self) -> Iterator[np.int64]:
        for i in range(50):
            if self.fails and i == 3:
                raise OSError("the disk of this worker")
            yield np.int64(i)


def parts_of(kind: str, fails: bool) -> dict[str, Any]:
    if kind == "another shape":
        return {"local": mr.Variable(np.zeros(3 if fails else 2, np.float32))}
    if kind == "another generator":
        return {"random": np.random.Generator(np.random.MT19937(1) if fails else np.random.PCG64(1))}
    if kind == "a state that is refused":
        reader = Reader()
        reader.fails = fails
        return {"reader": reader}
    if kind == "a disk that fails":
        disk = Disk()
        disk.fails = fails
        return {"iterator": iter(Dataset.from_generator(disk.elements))}
    return {"iterator": iter(Dataset.range(2 if fails else 50))}


def optimizer_of() -> tuple[mr.Variable, Any]:
    with strategy.scope():
        return mr.Variable(np.zeros(2, np.float32), name="w"), mr.optimizers.SGD(0.1, momentum=0.9)


def outcome(kind: str, how: str) -> list[Any]:
    """What a program finds that catches the error and goes on, after a restore that fails on worker 1."""
    w, optimizer = optimizer_of()
    parts = parts_of(kind, fails=False)
    optimizer.apply_gradients([(np.ones(2, np.float32), w)])
    if "iterator" in parts:
        [next(parts["iterator"]) for _ in range(5)]
    checkpoint = Checkpoint(w=w, optimizer=optimizer, step=5, history=[1.0, 2.0], **parts)
    path = str(folder / kind / how)
    manager = CheckpointManager(checkpoint, path)
    if how == "restore":
        path = checkpoint.save(path + "/c")
    else:
        manager.save(5)
        manager.wait()

    w, optimizer = optimizer_of()
    checkpoint = Checkpoint(w=w, optimizer=optimizer, step=0, history=[], **parts_of(kind, fails=me == 1))
    found = "no error"
    try:
        if how == "restore":
            checkpoint.restore(path)
        else:
            CheckpointManager(checkpoint, path).restore_latest()
    except Exception as error:
        found = str(error).partition("\n")[0]
    state = [w.numpy().tolist(), checkpoint.step, list(checkpoint.history)]
    strategy.run(lambda: w.assign(w + 1.0))
    total = strategy.reduce("SUM", strategy.run(lambda: w * 1.0), axis=None)
    return [found, state, np.asarray(total).tolist()]


KINDS = (
    "another shape",
    "another generator",
    "a state that is refused",
    "a disk that fails",
    "shorter data",
)


def outcome_of_unequal_steps() -> list[str]:
    manager = CheckpointManager(Checkpoint(n=1), folder / "steps")
    manager.save(1)
    try:
        manager.save(2 + me)
    except Exception as error:
        manager.wait()
        return [str(error).partition("\n")[0], *(Path(path).name for path in manager.checkpoints)]
    return []


found = {f"{kind}, {how}": outcome(kind, how) for kind in KINDS for how in ("restore", "restore_latest")}
print("RESULT", json.dumps([found, outcome_of_unequal_steps()]), flush=True)
