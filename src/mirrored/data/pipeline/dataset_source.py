"""Adapts `Dataset` to `Source`, the interface from which distributed datasets read any kind of dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, cast

from mirrored._jax import distributed
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.collectives.host_allgather import host_allgather
from mirrored.data.cursors import Cursor
from mirrored.data.elements import Element
from mirrored.data.options import AutoShardPolicy
from mirrored.data.pipeline.batching import full_batches, is_batched
from mirrored.data.pipeline.data_digest import digest_of
from mirrored.data.pipeline.dataset import Dataset
from mirrored.data.pipeline.file_sharding import files_of_worker, without_caches
from mirrored.data.pipeline.forgiving import Forgiving
from mirrored.data.pipeline.indexed_sources import MemorySource
from mirrored.data.pipeline.iterators import DatasetIterator
from mirrored.data.pipeline.nodes import Node, Run, first_element, nodes, seeded
from mirrored.data.pipeline.seeds import DrawnSeed
from mirrored.data.pipeline.shuffling import Shuffled
from mirrored.data.pipeline.stateful import TakenWhile
from mirrored.data.pipeline.streams import Filtered, IterableSource, Rebatched
from mirrored.data.pipeline.transformations import Mapping, Prefetched, Repeated, Sliced
from mirrored.data.pipeline.zipping import Zipped
from mirrored.data.placement import BATCH_DATASET, batch_size
from mirrored.data.shard_orders import ShardOrder
from mirrored.data.sources import Source, WorkerShare, elastic_job_error, register_kind
from mirrored.data.specs import NoElementError, empty_batch
from mirrored.errors import EndOfDataError, InputError, StructureError

_ONE_FOR_ONE: Final = (
    IterableSource,
    MemorySource,
    Mapping,
    Zipped,
    Prefetched,
    Repeated,
    Filtered,
    Shuffled,
    TakenWhile,
    Forgiving,
)
"""Sources, and the steps each of whose elements is made of one element of each of their datasets."""


@dataclasses.dataclass(frozen=True)
class DatasetSource(Source):
    """Adapter from `Dataset` to `Source`, the interface by which distributed datasets read any kind of dataset.

    Attributes:
        dataset: The dataset.
        without_examples: The result of `no_examples`, if it is already known.
        workers: The number of workers that each read a part of the data of their own.
        own_data: Whether each worker reads data of its own.
    """

    dataset: Dataset
    without_examples: Element = None
    workers: int = 1
    own_data: bool = False

    @property
    def batching(self) -> str:
        return BATCH_DATASET

    @property
    def spec(self) -> Any:
        return self.dataset.element_spec

    @property
    def cardinality(self) -> int:
        return self.dataset.node.cardinality

    @property
    def full_batches(self) -> int:
        return full_batches(self.dataset.node)

    @property
    def final_rebatch_size(self) -> int | None:
        node = self.dataset.node
        while isinstance(node, Mapping | Prefetched):
            node = node.parent
        return node.sizes[0] if isinstance(node, Rebatched) else None

    @property
    def may_be_unbatched(self) -> bool:
        return is_batched(self.dataset.node) is None

    @property
    def end_error(self) -> Callable[..., EndOfDataError]:
        return type(self.dataset).end_error

    def open(self) -> Cursor:
        return self.dataset.iterator(lambda element: element)

    def no_examples(self) -> Element:
        if self.without_examples is not None:
            return self.without_examples
        try:
            return empty_batch(self.dataset.element_spec)
        except NoElementError:
            return None

    def refuse_unbatched(self, called: str) -> None:
        if is_batched(self.dataset.node) is False:
            raise StructureError(
                called,
                found=f"the dataset is not batched: no step of {self.dataset!r} makes batches of its examples",
                rule="each element of a distributed dataset must be a global batch, which is then split",
                remedy=f"{self.batching}; if the elements are batches, pass a list or a Dataset.from_generator",
            )

    def of_worker(self, share: WorkerShare, called: str) -> Source | None:
        """Returns a source with the data that this worker reads; None if all workers read the same batches."""
        policy = self.dataset.options().experimental_distribute.auto_shard_policy
        if policy not in (AutoShardPolicy.OFF, AutoShardPolicy.FILE):
            return None
        if distributed.is_elastic():
            raise elastic_job_error(called, f"the dataset has AutoShardPolicy.{policy.name}")
        self.refuse_unbatched(called)
        is_file, worker, workers = policy is AutoShardPolicy.FILE, share.processes.index(share.process), 1
        dataset, first, own, error = self.dataset, None, None, None
        try:
            # The first batch has the global batch size, and the structure of the empty batches.
            # With FILE it is read without caches: a worker keeps the elements of its own files.
            whole = type(dataset)(without_caches(dataset.node)) if is_file else dataset
            first = _first(whole.take(1))  # not counted as a pass, which would change the order of the next one
            if is_file:
                workers = len(share.processes)
                dataset = type(dataset)(files_of_worker(dataset.node, worker, workers, called))
            own = None if first is None else batch_size(first, called)
        except Exception as caught:  # the other workers must not wait for this one, and raise an error, too
            error = caught
        size = _agreed_batch_size(called, own, error)
        if not size:
            return DatasetSource(dataset, workers=workers, own_data=True)
        # The worker's batch size is proportional to its number of replicas, so that all replicas get equal batches.
        part = -(-size * share.local_replicas // share.num_replicas)
        empty = None if first is None else tree_map(lambda leaf: leaf[:0], first)
        return DatasetSource(dataset.rebatch(part), empty, workers, own_data=True)

    def share_seeds(self, cursor: Cursor) -> None:
        iterator = cast(DatasetIterator, cursor)
        read = ", ".join([f"read the dataset {iterator.outline}", *iterator.arguments])
        everyone = host_allgather("iter(dataset)", read, [iterator.iteration, iterator.seeds, *iterator.draws])
        # A worker that alone has read the data, for instance to show examples, has counted more passes.
        iteration, count = (max(theirs[place] for theirs in everyone) for place in (0, 3))
        # Workers that read data of their own draw other numbers, unless `tf.random.set_seed` was called.
        number = iterator.draws[0] if self.own_data else everyone[0][2]
        iterator.begin_as(iteration, everyone[0][1], (number, count))

    def shard_orders(self, cursor: Cursor) -> list[ShardOrder]:
        iterator = cast(DatasetIterator, cursor)
        seeds = dict(zip(map(id, seeded(self.dataset.node)), iterator.seeds, strict=True))
        orders: list[ShardOrder] = []
        for step in _shards(self.dataset.node):
            kept = {one for earlier in nodes(step.parent) for one in earlier.kept_seeds()}  # in a cache file
            found = [
                [seeds[id(one)], id(one) in kept or not isinstance(one.seed, DrawnSeed), isinstance(one, Shuffled)]
                for one in seeded(step.parent)
            ]
            data = [step.step, digest_of(step.parent)]
            orders.append({"data": data, "index": step.start, "seeds": found, "iteration": iterator.iteration})
        return orders

    def share_shard_orders(self, cursor: Cursor, seeds: dict[int, list[int]], iteration: int) -> None:
        iterator, node = cast(DatasetIterator, cursor), self.dataset.node
        own = dict(zip(map(id, seeded(node)), iterator.seeds, strict=True))
        for place, step in enumerate(_shards(node)):
            if place in seeds:
                own.update(zip(map(id, seeded(step.parent)), seeds[place], strict=True))
        iterator.begin_as(iteration, list(own.values()), iterator.draws)

    def as_of_now(self, cursor: Cursor, state: Any) -> Any:
        known = isinstance(state, dict)  # otherwise restored from data without positions
        return {**state, **cast(DatasetIterator, cursor).next_passes} if known else state

    def restore(self, cursor: Cursor, state: dict[str, Any] | None, full: int | None) -> bool:
        iterator = cast(DatasetIterator, cursor)
        if state is None:
            return False
        counts = full is not None and state["count"] and is_batched(self.dataset.node) is None
        sources = [step for step in nodes(self.dataset.node) if isinstance(step, IterableSource)]
        if not sources or not _has_first_of_sources(self.dataset.node):
            # A position counts batches. If their size differs, or is not known, the examples are counted instead.
            return iterator.restore(state, again=counts and self._first_size(iterator, state) != full)
        for source in sources:
            source.take_first()  # of an earlier position
        too_short: InputError | None = None
        try:
            if not iterator.restore(state):
                return False
        except InputError as error:
            too_short = error  # of the same examples there are fewer batches if these are larger
        # Restoring has read the sources again from their first elements, without the functions of later steps.
        size = _size_of_first_elements(self.dataset.node)
        if counts and size != full and (size is not None or too_short is None):
            return iterator.restore(state, again=True)
        if too_short is not None:
            raise too_short
        return True

    def _first_size(self, iterator: DatasetIterator, state: dict[str, Any]) -> int | None:
        """Returns the size of the first batch of the iteration that contains a saved read position.

        None if the size is unknown. A second iterator of a user's iterable may share a file handle or a connection with
        the one that is restored. So the batch is read, with a second iterator, only without such a source, and before
        the position is restored.
        """
        if any(isinstance(step, IterableSource) for step in nodes(self.dataset.node)):
            return None
        try:
            return batch_size(iterator.first_of(state))
        except Exception:  # the iteration that begins again raises it, or this element has been left out
            return None


def _shards(node: Node) -> list[Sliced]:
    """Returns the `shard` steps of a dataset that take a part of elements in a random order."""
    shards = [step for step in nodes(node) if isinstance(step, Sliced) and step.step != 1]
    return [step for step in shards if seeded(step.parent)]


def _first(dataset: Dataset) -> Element | None:
    try:
        return first_element(dataset.node)
    except NoElementError:
        return None


def _agreed_batch_size(called: str, size: int | None, error: Exception | None) -> int | None:
    """Returns the largest size of all workers' first batches; None if no worker has a batch.

    A worker's own data can be empty, or less than a batch, and a shuffle with seeds of each worker can put the last
    batch first.

    Args:
        called: The function that the user called.
        size: The size of this worker's first batch; None if it has no batch.
        error: The error that this worker raised instead.

    Raises:
        InputError: Another worker has raised an error.
    """
    failure = None if error is None else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    everyone = host_allgather(called, "read the size of the first batch", [size, failure])
    if error is not None:
        raise error
    for worker, (_, theirs) in enumerate(everyone):
        if theirs is not None:
            raise InputError(
                called,
                found=f"worker {worker} cannot read its first batch: {theirs}",
                rule="each worker must be able to read its data",
                remedy=f"see the error of worker {worker}",
            )
    return max((theirs for theirs, _ in everyone if theirs), default=None)


def _has_first_of_sources(node: Node) -> bool:
    """Returns whether the size of the first batch can be computed from the sources' first elements."""
    known = isinstance(node, _ONE_FOR_ONE) or (isinstance(node, Sliced) and bool(node.stop))
    return known and all(map(_has_first_of_sources, node.parents))


def _size_of_first_elements(node: Node) -> int | None:
    """Returns the size of the first batch, computed from the first elements of the sources.

    Restoring a position has read these elements again. They are not read with a second iterator, which may share a file
    handle or a connection with the one that is restored.

    Returns:
        The size; None if it is unknown.
    """
    try:
        return batch_size(_read_again(node))
    except Exception:  # the iteration raises it, or this element has been left out
        return None


def _read_again(node: Node) -> Element:
    if isinstance(node, IterableSource):
        return node.take_first()
    if isinstance(node, MemorySource):
        return node.item(0)
    elements = [_read_again(parent) for parent in node.parents]
    if isinstance(node, Zipped):
        return node.treedef.unflatten(elements)
    # `filter` and `shuffle` may leave out the first element, or move it; its size is that of the others.
    return node.function_of(Run())(0, elements[0]) if isinstance(node, Mapping) else elements[0]


def source_of_arrays(arrays: PyTree, examples_per_batch: int) -> Source:
    """Returns a source of batches that are consecutive slices of the given arrays."""
    return DatasetSource(Dataset.from_tensor_slices(arrays).batch(examples_per_batch))


register_kind(Dataset, DatasetSource)
