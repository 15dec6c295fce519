"""Coordinates input between workers: common shuffle seeds, equal global batches, and a common end of the data."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from mirrored.collectives.host_allgather import check_equal, host_allgather
from mirrored.data.iterators import DatasetIterator
from mirrored.data.placing import Placer
from mirrored.data.readers import GlobalBatches, Reader, is_power_of_two
from mirrored.data.stats import log
from mirrored.errors import DisagreementError
from mirrored.values.distributed_values import PerReplica

_CALLED = "next(iterator)"


def settle_seeds(cursor: Any) -> None:
    """Makes all workers use the shuffle seeds of worker 0.

    A shuffle without a given seed draws a random one, which would differ between the workers.

    Raises:
        DisagreementError: The workers read different pipelines.
    """
    if not isinstance(cursor, DatasetIterator):
        return
    everyone = host_allgather("iter(dataset)", f"read the dataset {cursor.outline}", cursor.seeds)
    cursor.take_seeds(everyone[0])


def check_same_batch(batch: Any, number: int = 1) -> None:
    """Checks that all workers read the same global batch.

    Args:
        batch: This worker's batch.
        number: The number of the batch, counted from 1.

    Raises:
        DisagreementError: The batches differ.
    """
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    which = "the first batch" if number == 1 else f"batch {number}"
    check_equal(
        _CALLED,
        {f"element{jax.tree_util.keystr(path)} of {which}": leaf for path, leaf in leaves},
        rule="with AutoShardPolicy.DATA (or AUTO) all workers read the same global batches, and each keeps the "
        "per-replica batches of its own replicas",
        remedy="seed the source's random generator identically on all workers, or let each worker read its own data: "
        "AutoShardPolicy.FILE, or distribute_datasets_from_function",
    )


class WorkerSteps(Protocol):
    """Coordinates one input step: every worker calls `settled` after it has read its next batch."""

    def settled(self, value: Any, has_ended: bool) -> Any:
        """Returns this worker's per-replica batches of the step.

        Raises:
            StopIteration: There is no further step.
        """
        ...


def reader_meeting(reader: Reader, placer: Placer) -> WorkerSteps | None:
    """Returns the coordination that a job of several workers needs while reading; None in a single process.

    Context: when an iterator is created.
    """
    if placer.device_assignment is None or not placer.device_assignment.spans_processes:
        return None
    if isinstance(reader, GlobalBatches):
        settle_seeds(reader.cursor)
        if not placer.own_batches:
            return SameBatches(reader)
        if reader.empty is not None:
            return OwnBatches(reader, placer.batch(reader.empty))
    return OwnBatches(reader)


class SameBatches:
    """Checks that all workers read the same global batches. It compares the batches 1, 2, 4, 8, ...

    Comparing at powers of two detects data that diverges at a later batch, at a cost per step that tends to zero.

    Args:
        reader: Reads the global batches.
    """

    def __init__(self, reader: GlobalBatches) -> None:
        reader.keep_samples()
        self._reader = reader
        self._count = 0

    def settled(self, value: Any, has_ended: bool) -> Any:
        """Returns `value` unchanged, after the comparison."""
        if has_ended:
            raise StopIteration
        self._count += 1
        if is_power_of_two(self._count):
            check_same_batch(self._reader.sample(self._count), self._count)
        return value


class OwnBatches:
    """Coordinates workers that each read their own data, so that all of them run the same number of steps.

    The workers continue while any of them has data; a worker without data gets empty batches. If batches cannot be
    empty, all workers stop when the first one runs out.

    Args:
        reader: Knows whether per-replica batches can be empty.
        template: A batch with the structure of the other workers' batches, for a worker that never has data.
    """

    def __init__(self, reader: Reader, template: Any = None) -> None:
        self._reader = reader
        self._template = template

    def settled(self, value: Any, has_ended: bool) -> Any:
        """Returns this worker's per-replica batches, marked as ragged if shapes differ between replicas or workers.

        Args:
            value: This worker's per-replica batches, if it still has data.
            has_ended: Whether this worker has no more data.

        Raises:
            StopIteration: No worker has data.
            DisagreementError: This worker's data was empty from the start.
        """
        if not has_ended:
            self._template = value
        shapes = None if has_ended else _shapes(value)
        everyone = host_allgather(
            _CALLED, "take the next batch", [has_ended, self._template is not None, shapes, self._reader.ends_together]
        )
        ended = [theirs[0] for theirs in everyone]
        if all(ended) or (any(ended) and any(theirs[3] for theirs in everyone)):
            if not has_ended:
                log.warning(
                    "this worker drops the rest of its data: another worker has no more data, and its replicas "
                    "cannot get empty batches (last_batch='drop', or scalar elements)"
                )
            raise StopIteration
        if has_ended:
            if self._template is None:
                raise _nothing()
            value = jax.tree.map(_empty, self._template, is_leaf=_is_per_replica)
        uniform = not any(ended) and all(
            theirs[2] == shapes and len(set(map(str, shapes or []))) == 1 for theirs in everyone
        )
        return value if uniform else jax.tree.map(_ragged, value, is_leaf=_is_per_replica)


def _shapes(value: Any) -> list[Any]:
    """Returns the distinct lists of leaf shapes among the replicas of this worker."""
    leaves = jax.tree.leaves(value, is_leaf=_is_per_replica)
    rows = zip(*([list(np.shape(one)) for one in leaf.values] for leaf in leaves), strict=True)
    distinct: list[Any] = []
    for row in rows:
        if list(row) not in distinct:
            distinct.append(list(row))
    return distinct


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def _empty(value: PerReplica) -> PerReplica:
    return PerReplica([component[:0] for component in value.values], value.device_assignment)


def _ragged(value: PerReplica) -> PerReplica:
    return PerReplica(value.values, value.device_assignment, is_ragged=True)


def _nothing() -> DisagreementError:
    return DisagreementError(
        _CALLED,
        found="this worker's dataset is empty, and other workers have data",
        rule="a worker whose data ends first continues with empty batches shaped like its earlier ones",
        remedy="give every worker at least one batch: use fewer workers, or more files",
    )
