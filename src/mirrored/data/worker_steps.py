"""What workers settle about their input: the seeds of shuffles, equal global batches, and one end for all."""

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
    """Has all workers shuffle alike where nobody has given a seed: as worker 0 does.

    Raises:
        DisagreementError: The workers read different pipelines.
    """
    if not isinstance(cursor, DatasetIterator):
        return
    everyone = host_allgather("iter(dataset)", f"read the dataset {cursor.outline}", cursor.seeds)
    cursor.take_seeds(everyone[0])


def check_same_batch(batch: Any, number: int = 1) -> None:
    """Refuses to train on global batches that are not the same on all workers.

    Args:
        batch: This worker's.
        number: Which batch it is, counting from 1.

    Raises:
        DisagreementError: They are not.
    """
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    which = "the first batch" if number == 1 else f"batch {number}"
    check_equal(
        _CALLED,
        {f"element{jax.tree_util.keystr(path)} of {which}": leaf for path, leaf in leaves},
        rule="with AutoShardPolicy.DATA (or AUTO) all workers read the same global batches and take shares of them",
        remedy="give the source's random generator the same seed on all workers; or let each worker read its own data: "
        "AutoShardPolicy.FILE, or distribute_datasets_from_function",
    )


class WorkerSteps(Protocol):
    """What happens on all workers when each has read its next batch."""

    def settled(self, value: Any, has_ended: bool) -> Any:
        """This worker's part of the step.

        Raises:
            StopIteration: There is no further step.
        """
        ...


def reader_meeting(reader: Reader, placer: Placer) -> WorkerSteps | None:
    """What the workers settle while they read; None in one process. Context: when an iterator is made."""
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
    """All workers read the same global batches. Those with the numbers 1, 2, 4, 8, ... are compared.

    So data that differs from some batch on is noticed, and the comparisons take no time in the long run.

    Args:
        reader: Of them.
    """

    def __init__(self, reader: GlobalBatches) -> None:
        reader.keep_samples()
        self._reader = reader
        self._count = 0

    def settled(self, value: Any, has_ended: bool) -> Any:
        """What was read."""
        if has_ended:
            raise StopIteration
        self._count += 1
        if is_power_of_two(self._count):
            check_same_batch(self._reader.sample(self._count), self._count)
        return value


class OwnBatches:
    """One step of input on all workers, each with data of its own.

    They go on as long as one of them has data; those that have none get empty batches. Where shares cannot be empty
    they end together, with the first.

    Args:
        reader: Says whether shares can be empty.
        template: A batch of the kind that the others have, for a worker that has none from the beginning.
    """

    def __init__(self, reader: Reader, template: Any = None) -> None:
        self._reader = reader
        self._template = template

    def settled(self, value: Any, has_ended: bool) -> Any:
        """This worker's part of the step, that knows whether the others' parts have the same shapes.

        Args:
            value: Its per-replica batch, if it has not ended.
            has_ended: Whether it has no more data.

        Raises:
            StopIteration: No worker has data.
            DisagreementError: A worker has had none from the beginning.
        """
        if not has_ended:
            self._template = value
        mine = None if has_ended else _shapes(value)
        everyone = host_allgather(
            _CALLED, "take the next batch", [has_ended, self._template is not None, mine, self._reader.ends_together]
        )
        ended = [theirs[0] for theirs in everyone]
        if all(ended) or (any(ended) and any(theirs[3] for theirs in everyone)):
            if not has_ended:
                log.warning(
                    "this worker leaves out what remains of its data: another worker has no more, and its replicas "
                    "cannot get empty batches (last_batch='drop', or scalar elements)"
                )
            raise StopIteration
        if has_ended:
            if self._template is None:
                raise _nothing()
            value = jax.tree.map(_empty, self._template, is_leaf=_is_per_replica)
        uniform = not any(ended) and all(
            theirs[2] == mine and len(set(map(str, mine or []))) == 1 for theirs in everyone
        )
        return value if uniform else jax.tree.map(_ragged, value, is_leaf=_is_per_replica)


def _shapes(value: Any) -> list[Any]:
    """The shapes of each replica's components, one list per replica of this worker, duplicates left out."""
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
        rule="a worker whose data ends before that of others goes on with empty batches, of the kind that it had",
        remedy="give every worker at least one batch: fewer workers, or more files",
    )
