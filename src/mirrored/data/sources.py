"""What can be distributed: our datasets, Grain's, PyTorch's, Hugging Face's, NumPy pytrees, any re-iterable of batches.

Each becomes a `Source`: something that opens readings (`Cursor`) of global batches as NumPy pytrees.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from mirrored.data.batching import is_batched
from mirrored.data.cursors import IterableCursor, Iterators
from mirrored.data.dataset import Dataset
from mirrored.data.elements import Element, as_element
from mirrored.data.extra import engine
from mirrored.data.iterators import DatasetIterator
from mirrored.data.pipeline import Cursor
from mirrored.data.splitting import BATCH_DATASET, batch_size
from mirrored.errors import ArgumentError, EndOfDataError, InputError, StructureError

_BATCH_GRAIN: Final = "call .batch(batch_size=...) on the Grain dataset (a DataLoader: grain.transforms.Batch)"
_BATCH_ROWS: Final = "pass InputOptions(batch_size=...)"
_BATCH_TORCH: Final = "pass batch_size=... to the DataLoader"
_BATCH_LIST: Final = "yield batches (numpy.stack of the examples), or use Dataset.from_generator(...).batch(...)"


@dataclasses.dataclass(frozen=True)
class Source:
    """A re-iterable of elements.

    Attributes:
        open: Opens a new reading.
        dataset: Our dataset behind it, if it is one.
        batching: How the user makes batches, for messages.
        empty: A batch without examples, for a worker whose own files hold none.
    """

    open: Callable[[], Cursor]
    dataset: Dataset | None = None
    batching: str = BATCH_DATASET
    empty: Element = None

    def refuse_unbatched(self, called: str) -> None:
        """Refuses a dataset whose steps show that its elements are single examples.

        Rows would be taken for batches: the features of one example would be spread over the replicas.

        Raises:
            StructureError: It is one.
        """
        if self.dataset is not None and is_batched(self.dataset.node) is False:
            raise StructureError(
                called,
                found=f"the dataset is not batched: no step of {self.dataset!r} makes batches of its examples",
                rule="a distributed dataset has global batches, which are split into one share per replica",
                remedy=f"{self.batching}; if they are batches already, pass a list or a Dataset.from_generator",
            )

    @property
    def may_be_unbatched(self) -> bool:
        """Whether nothing says that its elements are batches."""
        return self.dataset is None or is_batched(self.dataset.node) is None

    @property
    def end_error(self) -> Callable[..., EndOfDataError]:
        """Makes the error for an element that is asked for after the last one."""
        return EndOfDataError if self.dataset is None else type(self.dataset).end_error

    def restore(self, cursor: Cursor, state: Any, full: int | None) -> bool:
        """Moves a new reading to a position.

        Args:
            cursor: The reading.
            state: Its position, None where the source has none of its own.
            full: How large the batches were.

        Returns:
            Whether that was possible. If not, the reading is at the beginning of the same epoch.
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


def as_source(data: Any, examples_per_batch: int | None, called: str) -> Source:
    """The source behind whatever a user passed.

    Raises:
        ArgumentError: It can be read only once, or not at all, or its batch size is not known.
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
            rule="a dataset can be read again for every epoch",
            remedy="pass what makes the iterator: Dataset.from_generator(function)",
        )
    batching = _BATCH_TORCH if _comes_from(data, "torch") else _BATCH_LIST
    iterators = Iterators(lambda: data, called)
    return Source(lambda: _ForeignCursor(data, iterators), batching=batching)


def _of_dataset(dataset: Dataset) -> Source:
    return Source(lambda: dataset.iterator(lambda element: element), dataset)


def _of_arrays(arrays: Any, size: int | None, called: str) -> Source:
    if size is None:
        raise ArgumentError(
            called,
            found=f"a pytree of arrays ({type(arrays).__name__}) and no batch size",
            rule="arrays hold one example per row, and a distributed dataset has global batches",
            remedy="pass Dataset.from_tensor_slices(arrays).batch(n), or InputOptions(batch_size=n)",
        )
    return _of_dataset(Dataset.from_tensor_slices(jax.tree.map(np.asarray, arrays)).batch(size))


def _of_hugging_face(data: Any, size: int | None) -> Source:
    formatted = data.with_format("numpy")
    made = formatted if size is None else _InBatches(formatted, size)
    return Source(lambda: _ForeignCursor(made), batching=_BATCH_ROWS)


def _is_pytree(data: tuple[Any, ...]) -> bool:
    return all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(data))


def _comes_from(data: Any, package: str) -> bool:
    return type(data).__module__.partition(".")[0] == package


def _is_grain(data: Any) -> bool:
    return "grain" in sys.modules and (engine().is_grain_dataset(data) or engine().is_grain_loader(data))


@dataclasses.dataclass(frozen=True)
class _InBatches:
    """A Hugging Face dataset, read in batches."""

    data: Any
    size: int

    def __iter__(self) -> Any:
        return self.data.iter(batch_size=self.size)


class _GrainCursor:
    """A reading of a Grain dataset or DataLoader, whose own state is the position."""

    def __init__(self, data: Any) -> None:
        self._iterator = iter(data)
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

    def set_state(self, state: Any) -> None:
        inner = state["grain"]
        self._iterator.set_state(inner.encode() if state["bytes"] else inner)

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


class _ForeignCursor(IterableCursor):
    """A reading of somebody else's loader. One that saves its own position (`state_dict`) is asked for it."""

    def __init__(self, data: Any, make: Callable[[], Any] | None = None) -> None:
        super().__init__(make or (lambda: data), _converted)
        self._data = data

    def get_state(self) -> Any:
        return {"loader": self._data.state_dict()} if hasattr(self._data, "state_dict") else None

    def set_state(self, state: Any) -> None:
        self._data.load_state_dict(state["loader"])


def _converted(value: Any, index: int) -> Element:
    try:
        return jax.tree.map(_as_array, value, is_leaf=_is_leaf)
    except (TypeError, ValueError) as error:
        raise InputError(
            "Strategy.experimental_distribute_dataset",
            found=f"batch {index} cannot be taken as arrays: {error}",
            rule="a batch is a pytree of arrays",
            remedy="give the loader a collate function that returns arrays",
        ) from error


def _is_leaf(part: Any) -> bool:
    """Lists of numbers are arrays, other lists (PyTorch's default collation gives lists of tensors) structures."""
    return isinstance(part, list) and all(_is_number(item) or _is_leaf(item) for item in part)


def _is_number(item: Any) -> bool:
    return isinstance(item, bool | int | float | complex | str | bytes | np.generic) or getattr(item, "shape", 0) == ()


def _as_array(leaf: Any) -> Any:
    if _comes_from(leaf, "torch"):
        return leaf.detach().cpu().numpy()
    return as_element(leaf, "Strategy.experimental_distribute_dataset")
