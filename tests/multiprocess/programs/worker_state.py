"""Saves state that differs between workers: ``worker_state.py FOLDER``."""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.data import Dataset
from mirrored.errors import WorkerStateWarning

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
folder = Path(sys.argv[1])
found: dict[str, Any] = {}


class Own:
    """State of each worker that is saved for each worker."""

    def __init__(self) -> None:
        self.seen = 10 + me

    def get_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Log:
    def __init__(self) -> None:
        self.lines = 3 + me
        self.text = f"worker {me}"  # texts are not saved


def warned(save: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save()
    return [f"{one.category.__name__}: {one.message}" for one in caught]


def differing(**parts: Any) -> list[str]:
    """The names that a save of the parts warns of, each with the values of two workers."""
    told = warned(lambda: Checkpoint(**parts).write(folder / "differing"))
    return [line.removeprefix(f"{WorkerStateWarning.__name__}: ").partition("\n")[0] for line in told]


with strategy.scope():
    shared = mr.Variable(1.0)
    of_replicas = mr.Variable(
        float(me), synchronization=mr.VariableSynchronization.ON_READ, aggregation=mr.VariableAggregation.NONE
    )
local = mr.Variable(np.float32(me))
generator = np.random.default_rng(me)

found["differing"] = {
    "number": differing(seen=10 + me),
    "numpy": differing(hist={"h": np.full(2, me)}),
    "jax": differing(params={"w": jnp.full(2, float(me))}),
    "key": differing(key=jax.random.key(me)),
    "variable": differing(v=local),
    "object": differing(log=Log()),
    "list": differing(losses=[0.5, 0.5 + me, 1.5 + me]),
    "longer list": differing(losses=[1] * (2 + me)),
    "long list": differing(losses=[*range(600), me], step=1),
    "sign": differing(zero=-0.0 if me else 0.0),
    "type": differing(step=1.0 if me else 1),
    "absent": differing(**({"audit": generator} if me else {}), step=1),
    "many": differing(a=me, b=me, c=me, d=me, e=me),
    "equal": differing(
        shared=shared,
        of_replicas=of_replicas,
        own=Own(),
        step=3,
        generator=generator,
        random=random.Random(me),
        nan=-np.float64(np.nan) if me else np.float64(np.nan),
        nans=np.array([1, -np.nan if me else np.nan], np.float32),
        texts={"name": f"worker {me}"},
        data=iter(Dataset.range(10).shard(2, me)),
    ),
}

checkpoint = Checkpoint(seen=me, v=local, losses=[me], steps=0)
found["whole"] = warned(lambda: checkpoint.save(folder / "c"))
checkpoint.losses.append(me)
found["again"] = warned(lambda: checkpoint.save(folder / "c"))
checkpoint.steps = me
found["another"] = warned(lambda: checkpoint.save(folder / "c", wait=False))
checkpoint.wait()

counted = Checkpoint(seen=me)
manager = CheckpointManager(counted, folder / "m")
found["manager"] = warned(lambda: manager.save(1))
refused = Checkpoint(seen=me)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        refused.save(folder / "refused")
    except WorkerStateWarning as error:
        found["error"] = [str(error).partition(":")[0], int(refused.save_counter.numpy())]

(folder / f"copy{me}").mkdir()
for number in range(2):
    (folder / f"copy{me}" / f"{number}").write_text("".join(f"{number * 3 + line}\n" for line in range(3)))
    (folder / f"own{me}-{number}").write_text("".join(f"{number * 3 + line + 100 * me:3}\n" for line in range(3)))
files = {name: [str(folder / name / str(number)) for number in range(2)] for name in (f"copy{me}",)}
pipelines = {
    "same": Dataset.range(20),
    "same array": Dataset.from_tensor_slices(np.arange(20.0)),
    "same files": Dataset.from_text_lines(files[f"copy{me}"]),
    "own": Dataset.range(100 * me, 100 * me + 20),
    "own array": Dataset.from_tensor_slices({"x": np.arange(20.0) + me}).shuffle(5, seed=1).batch(2),
    "own files": Dataset.from_text_lines([str(folder / f"own{me}-{number}") for number in range(2)]),
    "own arguments": Dataset.from_generator(lambda begin: range(begin, begin + 9), args=(100 * me,)),
}
for name, dataset in pipelines.items():
    iterator, unread = iter(dataset), iter(dataset)
    next(iterator)
    Checkpoint(data=iterator).write(folder / name)
    Checkpoint(data=unread).write(folder / f"unread {name}")
print("RESULT", json.dumps(found), flush=True)
