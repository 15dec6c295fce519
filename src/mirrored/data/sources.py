"""Adapts everything that can be distributed to a `Source`, which opens cursors over global batches (NumPy pytrees).

Supported are our `Dataset`, Grain datasets and DataLoaders, PyTorch DataLoaders, Hugging Face datasets, NumPy pytrees,
and any re-iterable of batches.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jax
import numpy as np

from mirrored._typing import Leaf, PyTree
from mirrored.data.cursors import IterableCursor, Iterators
from mirrored.data.elements import Element, as_element
from mirrored.data.extra import engine
from mirrored.data.pipeline.batching import is_batched
from mirrored.data.pipeline.dataset import Dataset
from mirrored.data.pipeline.iterators import DatasetIterator
from mirrored.data.pipeline.nodes import Cursor, NoElementError
from mirrored.data.placement import BATCH_DATASET, batch_size
from mirrored.data.specs import ArraySpec, map_specs
from mirrored.errors import ArgumentError, EndOfDataError, InputError, StructureError

_BATCH_GRAIN: Final = "call .batch(batch_size=...) on the Grain dataset (a DataLoader: grain.transforms.Batch)"
_BATCH_ROWS: Final = "pass InputOptions(batch_size=...)"
_BATCH_TORCH: Final = "pass batch_size=... to the DataLoader"
_BATCH_LIST: Final = "yield batches (numpy.stack of the examples), or use Dataset.from_generator(...).batch(...)"


@dataclasses.dataclass(frozen=True)
class Source:
    """A re-iterable of elements.

    Attributes:
        open: Opens a new cursor.
        dataset: The underlying `Dataset`, or None.
        batching: How the user creates batches, for messages.
        empty: A batch without examples, for a worker whose own files contain none.
    """

    open: Callable[[], Cursor]
    dataset: Dataset | None = None
    batching: str = BATCH_DATASET
    empty: Element = None

    def refuse_unbatched(self, called: str) -> None:
        """Raises an error if the steps of the dataset show that its elements are single examples.

        Otherwise a row would be treated as a batch, and the features of one example would be split over the replicas.

        Raises:
            StructureError: The elements are single examples.
        """
        if self.dataset is not None and is_batched(self.dataset.node) is False:
            raise StructureError(
                called,
                found=f"the dataset is not batched: no step of {self.dataset!r} makes batches of its examples",
                rule="each element of a distributed dataset is a global batch, which is split into per-replica batches",
                remedy=f"{self.batching}; if the elements are batches, pass a list or a Dataset.from_generator",
            )

    @property
    def may_be_unbatched(self) -> bool:
        """Whether it is unknown if the elements are batches."""
        return self.dataset is None or is_batched(self.dataset.node) is None

    @property
    def end_error(self) -> Callable[..., EndOfDataError]:
        """Creates the error for a request past the last element."""
        return EndOfDataError if self.dataset is None else type(self.dataset).end_error

    def no_examples(self) -> Any:
        """Returns a batch without examples; None if its structure is not known without an element."""
        if self.empty is not None or self.dataset is None:
            return self.empty
        try:
            spec = self.dataset.element_spec
        except NoElementError:
            return None
        shapes = [leaf.shape for leaf in jax.tree.leaves(spec, is_leaf=lambda part: isinstance(part, ArraySpec))]
        if any(not shape or None in shape[1:] for shape in shapes):
            return None
        return map_specs(lambda leaf: np.zeros((0, *leaf.shape[1:]), leaf.dtype), spec)

    def restore(self, cursor: Cursor, state: dict[str, Any] | None, full: int | None) -> bool:
        """Moves a new cursor to a position.

        Args:
            cursor: The cursor.
            state: The position; None if the source cannot save one.
            full: The batch size when the position was saved.

        Returns:
            Whether the position was restored. If not, the cursor is at the start of the same epoch.
        """
        if state is None:
            return False
        if isinstance(cursor, DatasetIterator):
            return cursor.restore(state)
        if full is not None and self._batch_size() != full:
            return False
        cursor.set_state(state)
        return True

    def _batch_size(self) -> int | None:
        probe = self.open()
        try:
            return batch_size(next(probe))
        except StopIteration:
            return None
        finally:
            probe.close()


def as_source(data: Iterable[Any], examples_per_batch: int | None, called: str) -> Source:
    """Converts a dataset of any supported type to a source.

    Raises:
        ArgumentError: `data` cannot be iterated or can be read only once, or its batch size is not known.
    """
    if isinstance(data, Dataset):
        return _of_dataset(data)
    if _is_grain(data):
        return Source(lambda: _GrainCursor(data), batching=_BATCH_GRAIN)
    if _comes_from(data, "datasets"):
        return _of_hugging_face(data, examples_per_batch)
    if isinstance(data, np.ndarray | jax.Array | Mapping) or (isinstance(data, tuple) and _is_pytree(data)):
        return _of_arrays(data, examples_per_batch, called)
    if not hasattr(data, "__iter__"):
        raise ArgumentError(
            called,
            found=f"{data!r} ({type(data).__name__}), which cannot be iterated",
            rule="a dataset is a re-iterable of global batches",
            remedy="pass a mirrored.data.Dataset, a Grain dataset, a PyTorch DataLoader, or a list of batches",
        )
    if iter(data) is data:
        raise ArgumentError(
            called,
            found=f"an iterator ({type(data).__name__}), which can be read only once",
            rule="a dataset is read again in every epoch",
            remedy="pass the function that creates the iterator: Dataset.from_generator(function)",
        )
    batching = _BATCH_TORCH if _comes_from(data, "torch") else _BATCH_LIST
    iterators = Iterators(lambda: data, called)
    return Source(lambda: _ForeignCursor(data, iterators), batching=batching)


def _of_dataset(dataset: Dataset) -> Source:
    return Source(lambda: dataset.iterator(lambda element: element), dataset)


def _of_arrays(arrays: PyTree, size: int | None, called: str) -> Source:
    if size is None:
        raise ArgumentError(
            called,
            found=f"a pytree of arrays ({type(arrays).__name__}) and no batch size",
            rule="arrays have one example per row, and the elements of a distributed dataset are global batches",
            remedy="pass Dataset.from_tensor_slices(arrays).batch(n), or InputOptions(batch_size=n)",
        )
    return _of_dataset(Dataset.from_tensor_slices(jax.tree.map(np.asarray, arrays)).batch(size))


def _of_hugging_face(data: Any, size: int | None) -> Source:
    formatted = data.with_format("numpy")
    made = formatted if size is None else _InBatches(formatted, size)
    return Source(lambda: _ForeignCursor(made), batching=_BATCH_ROWS)


def _is_pytree(data: tuple[Any, ...]) -> bool:
    return all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(data))


def _comes_from(data: object, package: str) -> bool:
    return type(data).__module__.partition(".")[0] == package


def _is_grain(data: object) -> bool:
    return "grain" in sys.modules and (engine().is_grain_dataset(data) or engine().is_grain_loader(data))


@dataclasses.dataclass(frozen=True)
class _InBatches:
    """Iterates over a Hugging Face dataset in batches."""

    data: Any
    size: int

    def __iter__(self) -> Any:
        return self.data.iter(batch_size=self.size)


class _GrainCursor:
    """A cursor over a Grain dataset or DataLoader. Grain's iterator state is the position."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._iterator: Any = iter(data)
        self._count = 0

    def __next__(self) -> Element:
        try:
            element = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            error.add_note(f"Grain: at element {self._count}")
            raise
        self._count += 1
        return as_element(element, "Grain")

    def get_state(self) -> Any:
        state = self._iterator.get_state()
        return {"grain": state.decode() if isinstance(state, bytes) else state, "bytes": isinstance(state, bytes)}

    def set_state(self, state: dict[str, Any]) -> None:
        inner = state["grain"]
        self._iterator.set_state(inner.encode() if state["bytes"] else inner)

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


class _ForeignCursor(IterableCursor):
    """A cursor over another library's loader. Its `state_dict`, if it has one, is the position."""

    def __init__(self, data: Iterable[Any], make: Callable[[], Any] | None = None) -> None:
        super().__init__(make or (lambda: data), _converted)
        self._data: Any = data

    def get_state(self) -> Any:
        return {"loader": self._data.state_dict()} if hasattr(self._data, "state_dict") else None

    def set_state(self, state: dict[str, Any]) -> None:
        self._data.load_state_dict(state["loader"])


def _converted(value: PyTree, index: int) -> Element:
    try:
        return jax.tree.map(_as_array, value, is_leaf=_is_leaf)
    except (TypeError, ValueError) as error:
        raise InputError(
            "Strategy.experimental_distribute_dataset",
            found=f"batch {index} cannot be converted to arrays: {error}",
            rule="a batch is a pytree of arrays",
            remedy="pass the loader a collate function that returns arrays",
        ) from error


def _is_leaf(part: object) -> bool:
    """Returns whether `part` is a list of numbers, which becomes an array. Other lists are pytree nodes.

    PyTorch's default collation returns lists of tensors.
    """
    return isinstance(part, list) and all(_is_number(item) or _is_leaf(item) for item in part)


def _is_number(item: object) -> bool:
    return isinstance(item, bool | int | float | complex | str | bytes | np.generic) or getattr(item, "shape", 0) == ()


def _as_array(leaf: Leaf) -> Any:
    if _comes_from(leaf, "torch"):
        return leaf.detach().cpu().numpy()
    return as_element(leaf, "Strategy.experimental_distribute_dataset")
