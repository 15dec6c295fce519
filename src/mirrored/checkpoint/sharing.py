"""Coordinates workers that save one checkpoint: selects the writer, and shares errors and data iterator positions.

A checkpoint that all workers save under one path is written once, by worker 0. If workers use different paths, as
TensorFlow programs do for all workers but the chief, the first worker of each path writes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mirrored._jax import distributed
from mirrored.checkpoint.json_state import to_json
from mirrored.checkpoint.leaves import Leaf, PositionLeaf
from mirrored.checkpoint.manifest import Manifest, read_manifest
from mirrored.checkpoint.saved import Saved
from mirrored.checkpoint.worker_state import WorkerState, warn_of_differences
from mirrored.checkpoint.writing import actual
from mirrored.collectives.host_allgather import digest, host_allgather
from mirrored.data.common_position import common_position
from mirrored.errors import (
    CheckpointError,
    CheckpointMismatchError,
    DamagedCheckpointError,
    DisagreementError,
    MirroredError,
    MissingCheckpointError,
)
from mirrored.values.attributes import attribute

_WORKERS: Final = "__workers__"


def several_workers() -> bool:
    """Returns whether this process is one of several workers that save checkpoints together."""
    return distributed.is_connected()


def writes_here(called: str, path: Path, *, is_numbered: bool = False) -> bool:
    """Returns whether this worker is the first of those that save to `path`, and so writes the checkpoint.

    Args:
        called: The function that the user called, for messages.
        path: Where this worker saves.
        is_numbered: Whether the path ends with the number of a step, equal on all workers that save to one folder.

    Raises:
        CheckpointError: Workers save different steps to one folder. All workers raise it.
    """
    if not several_workers():
        return True
    paths = host_allgather(called, "save a checkpoint", str(path))
    if is_numbered:
        _check_same_step(called, [Path(one) for one in paths])
    return bool(paths.index(str(path)) == distributed.this_process())


def _check_same_step(called: str, paths: Sequence[Path]) -> None:
    series = [(one.parent, one.name.rpartition("-")[0]) for one in paths]
    for worker, path in enumerate(paths):
        first = series.index(series[worker])
        if path != paths[first]:
            names = f"worker {first} saves {paths[first].name}, and worker {worker} saves {path.name}"
            raise CheckpointError(
                called,
                found=f"{names} to {path.parent}",
                rule="all workers that save to one folder save the same step together",
                remedy="pass the step that all workers have executed, or give each worker a folder of its own",
            )


def with_all_positions(manifest: Manifest, adapters: Mapping[str, Leaf], told: set[str], called: str) -> Manifest:
    """Returns the manifest, with the read positions of all workers' data iterators added if the positions differ.

    Equal positions in different data mean other examples, so they are added, too. Warns about other state that differs
    between workers. Texts that differ, such as the name of a host, are those of one worker: a restore does not compare
    them. The exchange does not depend on what a worker's checkpoint contains, so that all take part in it.

    Args:
        manifest: The state of this worker.
        adapters: The adapters that have read it, by name.
        told: What warnings have named before; this function adds to it.
        called: The method that saves.
    """
    if not several_workers():
        return manifest
    own = {name: saved.value for name, saved in manifest.leaves.items() if saved.kind == "position"}
    state = WorkerState.of(manifest.leaves, adapters)
    data = {name: _data_digest(leaf.iterator) for name, leaf in adapters.items() if isinstance(leaf, PositionLeaf)}
    mark = digest(to_json(manifest.described))
    everyone = host_allgather(called, "compare the state of all workers", [own, data, state.digests(told), mark])
    leaves = dict(manifest.leaves)
    for name in own:
        values = [positions.get(name) for positions, *_ in everyone]
        is_same_data = len({data_of_worker.get(name, "") for _, data_of_worker, *_ in everyone}) == 1
        common = common_position(values) if is_same_data else None
        leaves[name] = dataclasses.replace(leaves[name], value={_WORKERS: values} if common is None else common)
    values_of_all = functools.partial(host_allgather, called, "collect the values that differ between workers")
    warn_of_differences(called, state, [digests for *_, digests, _ in everyone], told, values_of_all)
    described = manifest.described
    if len({mark for *_, mark in everyone}) > 1:
        texts = host_allgather(called, "compare the texts of all workers", described)
        described = {name: text for name, text in described.items() if all(one.get(name) == text for one in texts)}
    return dataclasses.replace(manifest, leaves=leaves, described=described)


def _data_digest(iterator: object) -> str:
    """Returns a digest of the data that an iterator reads, if it can tell (`DatasetIterator.data_digest`)."""
    digest_of_data = attribute(iterator, "data_digest")
    return str(digest_of_data()) if callable(digest_of_data) else ""


def own_position(saved: Saved, name: str, called: str) -> Saved:
    """Returns this worker's read position in the data if `saved` has one per worker; returns other values unchanged.

    Raises:
        CheckpointMismatchError: The positions of a different number of workers were saved.
    """
    if saved.kind != "position" or not isinstance(saved.value, dict) or saved.value.keys() != {_WORKERS}:
        return saved
    values = saved.value[_WORKERS]
    workers = distributed.num_processes() if several_workers() else 1
    if len(values) == workers:
        return dataclasses.replace(saved, value=values[distributed.this_process() if several_workers() else 0])
    raise CheckpointMismatchError(
        called,
        found=f"{name} has a position for each of {len(values)} workers, and this job has {workers}",
        rule="if each worker reads its own data, positions can be restored only with the same number of workers",
        remedy=f"resume with {len(values)} workers, omit {name} from the checkpoint, or distribute global batches "
        "(AutoShardPolicy.DATA), whose position fits any number of workers",
    )


def on_all_workers(
    called: str, question: str, work: Callable[[], Any], *, shares: type[Exception] = CheckpointError
) -> Any:
    """Calls `work` on every worker; if one worker fails with a `CheckpointError`, raises the error on all workers.

    Args:
        called: The function that the user called, for messages.
        question: A label of the exchange, equal on all workers.
        work: The function. If it changes something, the caller undoes that after an error, also one of another worker.
        shares: The errors that are raised on all workers. Others leave the other workers waiting.

    Raises:
        CheckpointError: `work` failed on this worker or on another one.
    """
    if not several_workers():
        return work()
    result: Any = None
    error: Exception | None = None
    try:
        result = work()
    except DisagreementError:  # it is raised on the other workers, too, and they take part in no further exchange
        raise
    except shares as caught:
        error = caught
    errors = host_allgather(called, question, None if error is None else _described(error, called))
    for worker, theirs in enumerate(errors):
        if theirs is not None:
            # All workers raise the error of the same worker, so that their control flow does not diverge.
            if error is not None and worker == distributed.this_process():
                raise error
            kind, what, found, rule, remedy = theirs
            raise _KINDS.get(kind, CheckpointError)(
                what, found=f"worker {worker}: {found}", rule=rule, remedy=remedy
            ) from error
    return result


def _described(error: Exception, called: str) -> list[str]:
    """Returns the parts of the error that the other workers raise."""
    if isinstance(error, MirroredError):
        return [type(error).__name__, error.called, error.found, error.rule, error.remedy]
    return [
        type(error).__name__,
        called,
        f"{type(error).__name__}: {error}",
        "either all workers restore a checkpoint, or none; nothing was restored",
        f"remove the cause on that worker, whose error has the traceback, and call {called} again on all workers",
    ]


def same_files(called: str, path: Path) -> tuple[Path, Manifest]:
    """Returns the folder and the manifest of a checkpoint that all workers are about to restore.

    Raises:
        CheckpointError: A worker does not find the checkpoint, or finds a different one.
    """

    def read() -> tuple[Path, Manifest]:
        directory = actual(path)
        return directory, read_manifest(directory)

    directory, manifest = on_all_workers(called, f"read the checkpoint {path.name}", read)
    if not several_workers():
        return directory, manifest
    marks = host_allgather(called, f"compare the checkpoint {path.name}", digest(to_json(dataclasses.asdict(manifest))))
    different = [worker for worker, mark in enumerate(marks) if mark != marks[0]]
    if different:
        raise CheckpointError(
            called,
            found=f"{path} is a different checkpoint on worker {different[0]} than on worker 0",
            rule="all workers must restore the same checkpoint",
            remedy="store checkpoints on a file system that all workers share, and pass the same path on all workers",
        )
    return directory, manifest


_KINDS: Final[dict[str, type[CheckpointError]]] = {
    kind.__name__: kind
    for kind in (CheckpointError, CheckpointMismatchError, DamagedCheckpointError, MissingCheckpointError)
}
