"""`Source`, the interface by which distributed datasets read Grain, PyTorch, Hugging Face and other datasets.

Supported are Grain datasets and DataLoaders, PyTorch DataLoaders, Hugging Face datasets, NumPy pytrees, any re-iterable
of batches, and the kinds of datasets that a layer above registers (`Dataset`, by `mirrored.data.pipeline`).
"""

from __future__ import annotations

import abc
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from mirrored._jax.arrays import is_key
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.data.calling import Iterators
from mirrored.data.cursors import Cursor
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.foreign import (
    EpochCursor,
    ForeignCursor,
    GrainCursor,
    LoaderIterators,
    comes_from,
    has_loader_state,
    hugging_face,
    is_torch_loader,
)
from mirrored.data.loader_positions import LoaderCursors
from mirrored.data.options import UNKNOWN_CARDINALITY
from mirrored.data.placement import batch_size
from mirrored.data.shard_orders import ShardOrder
from mirrored.data.specs import NoElementError, map_specs, spec_of
from mirrored.errors import ArgumentError, EndOfDataError

_BATCH_GRAIN: Final = "call .batch(batch_size=...) on the Grain dataset (a DataLoader: grain.transforms.Batch)"
_BATCH_ROWS: Final = "pass InputOptions(batch_size=...)"
_BATCH_TORCH: Final = "pass batch_size=... to the DataLoader"
_BATCH_LIST: Final = "yield batches (numpy.stack of the examples), or use Dataset.from_generator(...).batch(...)"


@dataclasses.dataclass(frozen=True)
class WorkerShare:
    """The part of a dataset that one worker reads, described by process indices and numbers of replicas.

    Attributes:
        process: The process index of this worker.
        processes: The process indices of all workers, in order.
        local_replicas: The number of replicas of this worker.
        num_replicas: The number of replicas of all workers.
    """

    process: int
    processes: tuple[int, ...]
    local_replicas: int
    num_replicas: int


def elastic_job_error(called: str, found: str) -> ArgumentError:
    """Creates the error for input whose examples depend on the number of workers, which changes in an elastic job.

    Args:
        called: What the user called.
        found: Why the examples depend on it.
    """
    return ArgumentError(
        called,
        found=f"{found}, in a job of mirrored run --elastic",
        rule="in an elastic job each worker must read the same global batches: what one worker reads by itself has no "
        "place in the order of examples when the number of workers changes",
        remedy="use experimental_distribute_dataset with AutoShardPolicy.DATA (the default, AUTO, means DATA), or run "
        "without --elastic",
    )


class Source(abc.ABC):
    """Interface by which distributed datasets read datasets of any library (Grain, PyTorch, Hugging Face, ...)."""

    @property
    @abc.abstractmethod
    def batching(self) -> str:
        """The text, for error messages, that explains how to batch a dataset of this library."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The shapes and dtypes of the elements, as a pytree of `ArraySpec`."""

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """The number of elements, or the constant INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""

    @property
    def full_batches(self) -> int:
        """The number of elements that ``last_batch="drop"`` keeps, or INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return self.cardinality if self.cardinality <= 0 else UNKNOWN_CARDINALITY

    @property
    def final_rebatch_size(self) -> int | None:
        """The batch size set by a final `rebatch` operation of the dataset.

        Operations such as `map` and `prefetch` may follow the `rebatch`. None if there is no such `rebatch`. The size
        may differ when a position is restored.
        """
        return None

    @property
    def workers(self) -> int:
        """The number of workers that each read their own part of the data; 1 if all read the same data."""
        return 1

    @property
    def shares_position(self) -> bool:
        """Whether all iterators share one read position, so that reading from one moves the others."""
        return False

    @property
    @abc.abstractmethod
    def may_be_unbatched(self) -> bool:
        """Whether the elements may be single examples, i.e. are not known to be batches."""

    @property
    @abc.abstractmethod
    def end_error(self) -> Callable[..., EndOfDataError]:
        """The exception class raised by a request for an element after the last one."""

    @abc.abstractmethod
    def open(self) -> Cursor:
        """Returns a new iterator over the elements, with a read position that can be saved."""

    @abc.abstractmethod
    def no_examples(self) -> Element:
        """Returns a batch with 0 examples; None if the batches' structure is unknown before the first one is read."""

    @abc.abstractmethod
    def refuse_unbatched(self, called: str) -> None:
        """Raises an error if the elements are known to be single examples instead of batches.

        Otherwise a row would be treated as a batch, and the features of one example would be split over the replicas.

        Raises:
            StructureError: The elements are single examples.
        """

    @abc.abstractmethod
    def of_worker(self, share: WorkerShare, called: str) -> Source | None:
        """Returns a source with the data that one worker reads; None if all workers read the same global batches.

        Raises:
            ArgumentError: The data cannot be divided among the workers.
            StructureError: The elements are single examples.
        """

    def shard_orders(self, cursor: Cursor) -> list[ShardOrder]:
        """Returns what each `shard` of a dataset divides, and in which order; only of elements in a random order.

        Args:
            cursor: A result of `open`, before its first element.
        """
        del cursor
        return []

    def share_shard_orders(self, cursor: Cursor, seeds: dict[int, list[int]], iteration: int) -> None:
        """Sets the seeds before each `shard`, and the number of the pass.

        Args:
            cursor: A result of `open`, before its first element.
            seeds: By the place in the result of `shard_orders`: the seeds.
            iteration: The number of the pass.
        """
        del cursor, seeds, iteration

    def as_of_now(self, cursor: Cursor, state: Any) -> Any:
        """Returns the read position `state` with the current value of the iteration counter.

        A position that belongs to a batch was made when the batch was read ahead.
        """
        del cursor
        return state

    @abc.abstractmethod
    def share_seeds(self, cursor: Cursor) -> None:
        """Makes a new iterator use worker 0's shuffle seeds, so that all workers read in the same order.

        A shuffle without a given seed draws a random one, which would differ between the workers.

        Args:
            cursor: A result of `open`, before its first element.

        Raises:
            DisagreementError: The workers read different pipelines.
        """

    @abc.abstractmethod
    def restore(self, cursor: Cursor, state: dict[str, Any] | None, full: int | None) -> bool:
        """Moves a new iterator to a saved read position, and returns whether that was possible.

        Args:
            cursor: A result of `open`.
            state: The position; None if the source cannot save one.
            full: The batch size when the position was saved.

        Returns:
            Whether the position was restored. If not, the cursor is at the start of the same epoch.
        """


@dataclasses.dataclass(frozen=True)
class _IterableSource(Source):
    """The `Source` of another library's iterable, whose shapes and dtypes are inferred from the first element."""

    make: Callable[[], Cursor]
    how_to_batch: str
    batches: Sequence[Any] | None = None

    @property
    def batching(self) -> str:
        return self.how_to_batch

    @property
    def spec(self) -> Any:
        """The spec of the first element, with None for the number of examples.

        Raises:
            NoElementError: There is no element.
        """
        try:
            first = self._first_spec()
        except StopIteration:
            raise NoElementError("DistributedDataset.element_spec") from None
        return map_specs(lambda leaf: leaf.unbatched().batched(None) if leaf.shape else leaf, first)

    def _first_spec(self) -> Any:
        cursor = self.make()
        try:
            return spec_of(next(cursor))
        finally:
            cursor.close()

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY if self.batches is None else len(self.batches)

    @property
    def may_be_unbatched(self) -> bool:
        return True

    @property
    def end_error(self) -> Callable[..., EndOfDataError]:
        return EndOfDataError

    def open(self) -> Cursor:
        return self.make()

    def no_examples(self) -> Element:
        return None

    def refuse_unbatched(self, called: str) -> None:
        del called

    def of_worker(self, share: WorkerShare, called: str) -> Source | None:
        del share, called
        return None

    def share_seeds(self, cursor: Cursor) -> None:
        del cursor

    def restore(self, cursor: Cursor, state: dict[str, Any] | None, full: int | None) -> bool:
        if state is None:
            return False
        if full is not None and self._batch_size() != full:
            if isinstance(cursor, EpochCursor):
                cursor.begin_epoch_of(state)  # the examples to skip are those of this epoch
            return False
        cursor.set_state(state)
        return True

    def _batch_size(self) -> int | None:
        probe = self.make()
        try:
            return batch_size(next(probe))
        except StopIteration:
            return None
        finally:
            probe.close()


@dataclasses.dataclass(frozen=True)
class _LoaderSource(_IterableSource):
    """The `Source` of a loader with `state_dict`; all iterators share the loader's position."""

    cursors: LoaderCursors = dataclasses.field(kw_only=True)

    @property
    def shares_position(self) -> bool:
        return True

    def _first_spec(self) -> Any:
        return self.cursors.spec()

    def restore(self, cursor: Cursor, state: dict[str, Any] | None, full: int | None) -> bool:
        if state is None:
            return False
        cursor.set_state(state)
        return True


# What the layers above register: the kinds of datasets, and how arrays become batches.

_kinds: Final[dict[type, Callable[[Any], Source]]] = {}
_array_sources: Final[list[Callable[[PyTree, int], Source]]] = []


def register_kind(kind: type, adapt: Callable[[Any], Source]) -> None:
    """Registers a dataset class, with the function that converts its instances to a `Source`."""
    _kinds[kind] = adapt


def register_arrays(adapt: Callable[[PyTree, int], Source]) -> None:
    """Registers the function that converts arrays in memory and a batch size to a `Source`."""
    _array_sources[:] = [adapt]


def is_dataset(data: object) -> bool:
    """Returns whether `data` is an instance of a dataset class that was registered by `register_kind`."""
    return isinstance(data, tuple(_kinds))


def as_source(data: Iterable[Any], examples_per_batch: int | None, called: str) -> Source:
    """Converts a dataset of any supported library to a `Source`, from which a distributed dataset reads.

    Raises:
        ArgumentError: `data` cannot be iterated or can be read only once, or its batch size is not known.
    """
    for kind, adapt in _kinds.items():
        if isinstance(data, kind):
            return _of_batches(adapt(data), data, examples_per_batch, called)
    if _is_grain(data):
        grain = _IterableSource(lambda: GrainCursor(data), _BATCH_GRAIN)
        return _of_batches(grain, data, examples_per_batch, called)
    if comes_from(data, "datasets"):
        return _IterableSource(hugging_face(data, examples_per_batch, called), _BATCH_ROWS)
    if isinstance(data, np.ndarray | jax.Array | Mapping) or (isinstance(data, tuple) and _is_pytree(data)):
        return _of_arrays(data, examples_per_batch, called)
    if not hasattr(data, "__iter__"):
        raise ArgumentError(
            called,
            found=f"{data!r} ({type(data).__name__}) cannot be iterated",
            rule="a dataset must be an iterable of global batches that can be iterated more than once",
            remedy="pass a mirrored.data.Dataset, a Grain dataset, a PyTorch DataLoader, or a list of batches",
        )
    # `iter` of a loader would begin an iteration, for which the loader's state may have been loaded.
    if hasattr(data, "__next__") and iter(data) is data:
        raise ArgumentError(
            called,
            found=f"the dataset is an iterator ({type(data).__name__}), which can be read only once",
            rule="it must be possible to read a dataset again in every epoch",
            remedy="pass the function that creates the iterator: Dataset.from_generator(function)",
        )
    is_loader = is_torch_loader(data)
    iterators = LoaderIterators(data, called) if is_loader else Iterators(lambda: data, called)
    batching = _BATCH_TORCH if is_loader or comes_from(data, "torch") else _BATCH_LIST
    batches = data if isinstance(data, (list, tuple)) else None
    source: Source
    if has_loader_state(data):
        cursors = LoaderCursors(data, iterators)
        source = _LoaderSource(cursors.open, batching, batches, cursors=cursors)
    else:
        source = _IterableSource(lambda: ForeignCursor(data, iterators), batching, batches)
    return _of_batches(source, data, examples_per_batch, called)


def _of_arrays(arrays: PyTree, size: int | None, called: str) -> Source:
    if size is None:
        raise ArgumentError(
            called,
            found=f"a pytree of arrays ({type(arrays).__name__}) was passed without a batch size",
            rule="arrays have one example per row, so the size of a global batch must be given",
            remedy="pass Dataset.from_tensor_slices(arrays).batch(n), or InputOptions(batch_size=n)",
        )
    return _array_sources[0](tree_map(lambda leaf: leaf if is_key(leaf) else np.asanyarray(leaf), arrays), size)


def _of_batches(source: Source, data: object, size: int | None, called: str) -> Source:
    """Returns a source whose elements are batches; raises ArgumentError if a batch size was given as well."""
    if size is not None:
        raise ArgumentError(
            called,
            found=f"InputOptions(batch_size={size}) was passed with batches, the elements of a {type(data).__name__}",
            rule="batch_size applies to sources of single examples: a NumPy pytree, a Hugging Face dataset",
            remedy=f"omit batch_size; for batches of another size, {source.batching}",
        )
    return source


def _is_pytree(data: tuple[Any, ...]) -> bool:
    return all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(data))


def _is_grain(data: object) -> bool:
    return "grain" in sys.modules and (engine().is_grain_dataset(data) or engine().is_grain_loader(data))
