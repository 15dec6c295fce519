"""Checkpoints of a job of several workers: who writes, what all hear of it, and what each has of its own.

A checkpoint that all workers save under one path is written once, by worker 0. Workers that name paths of their own, as
TensorFlow's programs do for all but the chief, each write theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mirrored._jax import coordination
from mirrored.checkpoint.leaves import Saved, to_json
from mirrored.checkpoint.manifest import Manifest, read_manifest
from mirrored.checkpoint.writing import actual
from mirrored.collectives.host_allgather import digest, host_allgather
from mirrored.errors import CheckpointError, CheckpointMismatchError, DamagedCheckpointError, MissingCheckpointError

_WORKERS: Final = "__workers__"


def several_workers() -> bool:
    """Whether this process is one of several that save together."""
    return coordination.is_connected()


def writes_here(called: str, path: Path) -> bool:
    """Whether this worker writes the checkpoint: it is the first one that saves under this path."""
    if not several_workers():
        return True
    paths = host_allgather(called, "save a checkpoint", str(path))
    return bool(paths.index(str(path)) == coordination.this_process())


def with_all_positions(manifest: Manifest, called: str) -> Manifest:
    """The manifest with the positions of all workers, where they differ: each may read data of its own."""
    own = {name: saved.value for name, saved in manifest.leaves.items() if saved.kind == "position"}
    if not several_workers() or not own:
        return manifest
    everyone = host_allgather(called, "collect the positions of all workers in their data", own)
    leaves = dict(manifest.leaves)
    for name in own:
        values = [theirs.get(name) for theirs in everyone]
        if any(to_json(value) != to_json(values[0]) for value in values):
            leaves[name] = dataclasses.replace(leaves[name], value={_WORKERS: values})
    return dataclasses.replace(manifest, leaves=leaves)


def own_position(saved: Saved, name: str, called: str) -> Saved:
    """A saved position as this worker takes it: its own, if each had one.

    Raises:
        CheckpointMismatchError: It was saved by another number of workers, each with data of its own.
    """
    if saved.kind != "position" or not isinstance(saved.value, dict) or saved.value.keys() != {_WORKERS}:
        return saved
    values = saved.value[_WORKERS]
    workers = coordination.num_processes() if several_workers() else 1
    if len(values) == workers:
        return dataclasses.replace(saved, value=values[coordination.this_process() if several_workers() else 0])
    raise CheckpointMismatchError(
        called,
        found=f"{name} has a position for each of {len(values)} workers, and this job has {workers}",
        rule="where each worker reads data of its own, a position fits as many workers",
        remedy=f"go on with {len(values)} workers, leave {name} out of the checkpoint, or distribute global batches "
        "(AutoShardPolicy.DATA), whose position fits any number of workers",
    )


def settled(called: str, question: str, work: Callable[[], Any]) -> Any:
    """Does `work` on every worker and waits for all of them; an error of one is raised on all.

    Raises:
        CheckpointError: Of this worker or of another one.
    """
    if not several_workers():
        return work()
    result, error = None, None
    try:
        result = work()
    except CheckpointError as caught:
        error = caught
    mine = None if error is None else [type(error).__name__, error.called, error.found, error.rule, error.remedy]
    told = host_allgather(called, question, mine)
    for worker, theirs in enumerate(told):
        if theirs is not None:
            # The first error on all workers, so that all go on in the same way.
            if error is not None and worker == coordination.this_process():
                raise error
            kind, what, found, rule, remedy = theirs
            raise _KINDS.get(kind, CheckpointError)(
                what, found=f"worker {worker}: {found}", rule=rule, remedy=remedy
            ) from error
    return result


def check_same_files(called: str, path: Path) -> None:
    """Makes sure that all workers are about to restore the same checkpoint.

    Raises:
        CheckpointError: One of them does not find it, or finds another one.
    """
    if not several_workers():
        return
    manifest = settled(called, f"look at the checkpoint {path.name}", lambda: read_manifest(actual(path)))
    marks = host_allgather(called, f"compare the checkpoint {path.name}", digest(to_json(dataclasses.asdict(manifest))))
    different = [worker for worker, mark in enumerate(marks) if mark != marks[0]]
    if different:
        raise CheckpointError(
            called,
            found=f"{path} is another checkpoint on worker {different[0]} than on worker 0",
            rule="all workers restore the same checkpoint",
            remedy="keep checkpoints on a file system that all workers share, and give all the same path",
        )


_KINDS: Final[dict[str, type[CheckpointError]]] = {
    kind.__name__: kind
    for kind in (CheckpointError, CheckpointMismatchError, DamagedCheckpointError, MissingCheckpointError)
}
