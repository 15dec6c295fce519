"""Coordinates the input of several workers: shuffle seeds, equal global batches, and the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import jax
import numpy as np

from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.collectives.host_allgather import check_equal, host_allgather
from mirrored.data.cursors import Cursor
from mirrored.data.elements import Element
from mirrored.data.feed import log
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.placement import Placer
from mirrored.data.readers import ElementsInTurn, GlobalBatches, Reader, is_power_of_two
from mirrored.data.shard_orders import agreed_orders
from mirrored.data.sources import Source
from mirrored.errors import DisagreementError
from mirrored.values.distributed_values import PerReplica

if TYPE_CHECKING:
    from mirrored.data.distributed import DistributedDataset

_CALLED: Final = "next(iterator)"


def check_same_batch(batch: Element, number: int = 1) -> None:
    """Raises an error on all workers if they have read different global batches.

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
    """Protocol of objects by which all workers agree on the input of each training step and on the last step."""

    def agreed_input(self, value: PyTree, has_ended: bool, number: int) -> Any:
        """Agrees with the other workers on the input of the next step; returns this worker's part of the input.

        Args:
            value: This worker's per-replica batches, if it still has data.
            has_ended: Whether this worker has no more data.
            number: The number of the batch, counted from 1: the same if an interrupt has ended the previous call.

        Raises:
            StopIteration: There is no further step.
        """
        ...


def worker_steps(reader: Reader, placer: Placer) -> WorkerSteps | None:
    """Returns the `WorkerSteps` object by which several workers agree on the input of each training step.

    None for a single worker. Shards of one dataset begin in a common order.

    Context: when an iterator is created.
    """
    if isinstance(reader, ElementsInTurn):
        _share_shard_orders(reader.iterators(), placer.spans_processes)
    if not placer.spans_processes:
        return None
    if isinstance(reader, GlobalBatches):
        reader.share_seeds()
        if not placer.own_batches:
            return SameBatches(reader)
    return OwnBatches(reader, placer)


class SameBatches:
    """Checks that all workers read the same global batches; compares batches 1, 2, 4, 8, ... between workers.

    If all batches after some point differ between workers, the comparison at the next power of two finds the
    difference. The cost per step tends to zero. A single unequal batch in between is not found. The end of the data is
    not compared, because equal data ends together.

    Args:
        reader: Reads the global batches.
    """

    def __init__(self, reader: GlobalBatches) -> None:
        reader.keep_samples()
        self._reader = reader

    def agreed_input(self, value: PyTree, has_ended: bool, number: int) -> Any:
        """Checks, for batches 1, 2, 4, 8, ..., that all workers have read the same batch; returns the batch."""
        if has_ended:
            raise StopIteration
        if is_power_of_two(number) and (sample := self._reader.sample(number)) is not None:
            check_same_batch(sample, number)
            self._reader.drop_sample(number)  # only now: an interrupt in the comparison is followed by another one
        return value


class OwnBatches:
    """Synchronizes workers that read different data: all run equally many steps, some with empty batches.

    The workers continue while any of them has data; a worker without data gets empty batches. If batches cannot be
    empty, all workers stop when the first one runs out.

    Args:
        reader: Knows whether per-replica batches can be empty, and what they look like on a worker that never has data.
        placer: Places them.
    """

    def __init__(self, reader: Reader, placer: Placer) -> None:
        reader.layout.keep()
        self._reader, self._placer = reader, placer
        self._template: Any = None

    def agreed_input(self, value: PyTree, has_ended: bool, number: int) -> Any:
        """Returns this worker's per-replica batches for the next step; empty ones if this worker has no more data.

        Args:
            value: This worker's per-replica batches, if it still has data.
            has_ended: Whether this worker has no more data.
            number: The number of the batch, counted from 1.

        Raises:
            StopIteration: No worker has data.
            DisagreementError: The data of some workers is empty from the start, and the structure of its batches is
                not known. All workers raise it.
        """
        del number
        if not has_ended:
            self._template = value
        elif self._template is None:
            empty = self._reader.no_examples()
            self._template = None if empty is None else self._reader.place(self._placer, empty)
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
        empty_workers = [worker for worker, theirs in enumerate(everyone) if not theirs[1]]
        if empty_workers:
            raise _empty_workers_error(empty_workers)
        if has_ended:
            value = tree_map(_empty, self._template, is_leaf=_is_per_replica)
        uniform = not any(ended) and all(
            theirs[2] == shapes and len(set(map(str, shapes or []))) == 1 for theirs in everyone
        )
        return value if uniform else tree_map(_ragged, value, is_leaf=_is_per_replica)


def _share_shard_orders(iterators: Sequence[tuple[Source, Cursor]], spans_processes: bool) -> None:
    """Lets all datasets that take shards of the same data shuffle it in the same order."""
    if not spans_processes and len(iterators) == 1:
        return
    own = [source.shard_orders(cursor) for source, cursor in iterators]
    worker, everyone = 0, [own]
    if spans_processes:
        everyone = host_allgather("iter(dataset)", "agree on the orders before shard", own)
        worker = jax.process_index()
    seeds, iteration = agreed_orders(everyone)
    for number, (source, cursor) in enumerate(iterators):
        of_dataset = {
            place: found for (who, dataset, place), found in seeds.items() if (who, dataset) == (worker, number)
        }
        if of_dataset:
            source.share_shard_orders(cursor, of_dataset, iteration)


def _shapes(value: PyTree) -> list[Any]:
    """Returns the leaf shapes of each replica's batch on this worker, as a list of lists without duplicates."""
    leaves = jax.tree.leaves(value, is_leaf=_is_per_replica)
    rows = zip(*([list(np.shape(one)) for one in leaf.values] for leaf in leaves), strict=True)
    distinct: list[Any] = []
    for row in rows:
        if list(row) not in distinct:
            distinct.append(list(row))
    return distinct


def _is_per_replica(value: object) -> bool:
    return isinstance(value, PerReplica)


def _empty(value: PerReplica) -> PerReplica:
    return PerReplica.of_components([component[:0] for component in value.values], value.device_assignment)


def _ragged(value: PerReplica) -> PerReplica:
    return PerReplica.of_components(value.values, value.device_assignment, is_ragged=True)


def _empty_workers_error(workers: Sequence[int]) -> DisagreementError:
    which = f"worker {workers[0]}" if len(workers) == 1 else f"workers {', '.join(map(str, workers))}"
    return DisagreementError(
        _CALLED,
        found=f"the data of {which} is empty, and the other workers have data",
        rule="a worker without data continues with empty batches shaped like its earlier ones, or like the "
        "element_spec of its Dataset if that is known without an element",
        remedy="give every worker at least one batch (use fewer workers, or more files), or state the shapes: "
        "Dataset.from_generator(function, output_signature=...)",
    )


def agreed_cardinality(dataset: DistributedDataset, called: str) -> int:
    """Returns the number of steps in a pass over the data of all workers, or a constant such as UNKNOWN_CARDINALITY.

    Workers that read their own data may have different numbers of batches. They continue while any of them has data.

    Context: all workers of a job call it.

    Args:
        dataset: The dataset.
        called: What the user called, for messages.
    """
    own = dataset.cardinality
    placer = dataset._placer
    if not (placer.spans_processes and placer.own_batches):
        return own
    everyone: list[int] = host_allgather(called, "count the batches of a distributed dataset", own)
    endless, finite = INFINITE_CARDINALITY in everyone, [count for count in everyone if count != INFINITE_CARDINALITY]
    ends_together = dataset._options.last_batch == "drop"
    if endless and not (ends_together and finite):
        return INFINITE_CARDINALITY
    if UNKNOWN_CARDINALITY in finite:
        return UNKNOWN_CARDINALITY
    return min(finite) if ends_together else max(finite)
