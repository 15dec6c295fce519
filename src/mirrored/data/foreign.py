"""Iterators over the datasets of other libraries: Grain, PyTorch and Hugging Face."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.data.calling import Iterators
from mirrored.data.cursors import Cursor, IterableCursor
from mirrored.data.elements import Element, as_element, stack
from mirrored.errors import ArgumentError, InputError, StructureError


def comes_from(data: object, package: str) -> bool:
    """Returns whether the class of `data` is defined in the given package."""
    return type(data).__module__.partition(".")[0] == package


def is_torch_loader(data: object) -> bool:
    """Returns whether `data` is an instance of PyTorch's `DataLoader`, without importing PyTorch."""
    return any(one.__name__ == "DataLoader" and one.__module__.startswith("torch.") for one in type(data).__mro__)


def has_loader_state(data: object) -> bool:
    """Returns whether `data` is a data loader with the methods `state_dict` and `load_state_dict`."""
    return hasattr(data, "state_dict") and hasattr(data, "load_state_dict")


class LoaderIterators:
    """A factory of iterators over a PyTorch DataLoader; with persistent workers, only the newest iterator can be read.

    With ``persistent_workers=True`` the loader resets the iterator in every epoch, and returns the same one. So only
    the latest iteration can read from it; an earlier one, which may read ahead in its thread, raises an error.

    Args:
        loader: The DataLoader.
        called: The function that the user called, for messages.
    """

    def __init__(self, loader: Any, called: str) -> None:
        self._loader, self.called = loader, called
        self._new = Iterators(lambda: loader, called)
        self._has_one = bool(getattr(loader, "persistent_workers", True))
        self.lock = threading.Lock()
        self.latest: object = None

    def __call__(self) -> Iterator[Any]:
        """Returns an iterator over the loader for a new epoch."""
        if not self._has_one:
            return self._new()
        with self.lock:
            made = self.latest = _EpochIterator(self, iter(self._loader))
        return made


class _EpochIterator:
    """An iterator over one epoch of a DataLoader with persistent workers.

    It raises an error when it is read after the iterator of a later epoch was created.
    """

    def __init__(self, owner: LoaderIterators, iterator: Iterator[Any]) -> None:
        self._owner, self._iterator = owner, iterator

    def __iter__(self) -> _EpochIterator:
        return self

    def __next__(self) -> Any:
        with self._owner.lock:
            if self._owner.latest is not self:
                raise InputError(
                    self._owner.called,
                    found="a later iteration over the same DataLoader has begun",
                    rule="a DataLoader with persistent_workers=True has one iterator, which a new iteration resets: "
                    "only the latest iteration can read from it",
                    remedy="finish an epoch before the next one begins, or pass persistent_workers=False",
                )
            return next(self._iterator)


def hugging_face(data: Any, size: int | None, called: str) -> Callable[[], Cursor]:
    """Returns a function that opens an iterator over a Hugging Face dataset, whose columns become NumPy arrays.

    A transform of the user (`with_transform`) stays: its results are converted.

    Raises:
        ArgumentError: `data` has several splits.
    """
    if isinstance(data, dict):
        raise ArgumentError(
            called,
            found=f"a {type(data).__name__} with the splits {list(data)}",
            rule="a distributed dataset reads one split",
            remedy=f"pass one of the splits: dataset[{next(iter(data), 'train')!r}]",
        )
    formatted = _in_numpy(data)
    made = formatted if size is None else _InBatches(formatted, size)
    if formatted is data or not hasattr(formatted, "set_epoch"):
        return lambda: ForeignCursor(made)
    # `with_format` makes a new streaming dataset, of epoch 0; the user calls `set_epoch` of the original.
    return lambda: EpochCursor(made, formatted, lambda: int(getattr(data, "epoch", getattr(data, "_epoch", 0))))


def _in_numpy(data: Any) -> Any:
    """Sets a Hugging Face dataset's output format to NumPy, and keeps the user's transform and column selection."""
    chosen = getattr(data, "format", None)  # streaming datasets have none
    if not isinstance(chosen, dict):
        return data.with_format("numpy")
    if chosen["type"] in ("custom", "numpy"):
        return data
    return data.with_format("numpy", chosen["columns"], bool(chosen.get("output_all_columns")))


@dataclasses.dataclass(frozen=True)
class _InBatches:
    """An iterable over the batches of a Hugging Face dataset, in which lists of arrays are stacked."""

    data: Any
    size: int

    def __iter__(self) -> Any:
        # No generator, which an exception would end.
        return map(_with_stacked_lists, self.data.iter(batch_size=self.size))


def _with_stacked_lists(batch: PyTree) -> Element:
    return tree_map(_stacked, batch, is_leaf=lambda part: isinstance(part, list))


def _stacked(part: object) -> Any:
    """Stacks a list of arrays along a new leading dim, as `with_format("numpy")`; returns other values unchanged."""
    if not isinstance(part, list) or _is_leaf(part):
        return part
    try:
        items = [tree_map(_as_array, _with_stacked_lists(item), is_leaf=_is_leaf) for item in part]
        return stack(items, "Dataset.with_transform")
    except StructureError as error:
        error.add_note("Hugging Face: a list in a batch has an item for each example; their arrays are stacked")
        raise


class GrainCursor:
    """An iterator over a Grain dataset or DataLoader; its saved position is the state of Grain's iterator."""

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
        # A list of arrays is a structure, as for Grain itself, whose `batch` stacks the items of lists.
        return tree_map(lambda leaf: as_element(leaf, "Grain"), element, is_leaf=_is_leaf)

    def get_state(self) -> Any:
        state = self._iterator.get_state()
        return {"grain": state.decode() if isinstance(state, bytes) else state, "bytes": isinstance(state, bytes)}

    def set_state(self, state: dict[str, Any]) -> None:
        inner = copy.deepcopy(state["grain"])  # Grain goes on using lists of it, and changes them (0.2.18, interleave)
        self._iterator.set_state(inner.encode() if state["bytes"] else inner)

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


class ForeignCursor(IterableCursor):
    """An iterator over another library's loader; its saved position is the loader's `state_dict`, if it has one."""

    def __init__(self, data: Iterable[Any], make: Callable[[], Any] | None = None) -> None:
        super().__init__(make or (lambda: data), _converted)
        self._data: Any = data

    def get_state(self) -> Any:
        # A copy: reading ahead changes a dict that the loader returns and goes on using.
        return {"loader": copy.deepcopy(self._data.state_dict())} if has_loader_state(self._data) else None

    def set_state(self, state: dict[str, Any]) -> None:
        self._data.load_state_dict(copy.deepcopy(state["loader"]))


class EpochCursor(ForeignCursor):
    """An iterator over a streaming Hugging Face dataset; its saved position includes the epoch.

    Such a dataset ignores a position of another epoch than its own, and begins.

    Args:
        made: The dataset, or its batches.
        stream: The dataset.
        epoch: Returns the epoch that the user has set.
    """

    def __init__(self, made: Any, stream: Any, epoch: Callable[[], int]) -> None:
        super().__init__(made, self._in_epoch)
        self._stream, self._epoch_of_user = stream, epoch
        self._epoch: int | None = None  # of this pass, once it has begun or a position is restored

    def _in_epoch(self) -> Any:
        if self._epoch is None:
            self._epoch = self._epoch_of_user()
        self._stream.set_epoch(self._epoch)
        return self._data

    def get_state(self) -> Any:
        if self._epoch is None:  # not begun: the stream still has its position in the epoch before
            return None
        return super().get_state() or {**IterableCursor.get_state(self), "epoch": self._epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        self.begin_epoch_of(state)
        if "loader" in state:
            super().set_state(state)
        else:
            IterableCursor.set_state(self, state)

    def begin_epoch_of(self, state: dict[str, Any]) -> None:
        """Sets the epoch of this pass to that of a saved position; must be called before the first element is read."""
        found = state.get("loader", state)
        self._epoch = found.get("epoch") if isinstance(found, dict) else None


def _converted(value: PyTree, index: int) -> Element:
    try:
        return tree_map(_as_array, value, is_leaf=_is_leaf)
    except (TypeError, ValueError) as error:
        raise InputError(
            "Strategy.experimental_distribute_dataset",
            found=f"batch {index} cannot be converted to arrays: {error}",
            rule="a batch must be a pytree of arrays",
            remedy="pass the loader a collate function that returns arrays",
        ) from error


def _is_leaf(part: object) -> bool:
    """Returns whether `part` is a list of numbers, which becomes an array; other lists are pytree nodes.

    PyTorch's default collation returns lists of tensors.
    """
    return isinstance(part, list) and all(_is_number(item) or _is_leaf(item) for item in part)


def _is_number(item: object) -> bool:
    return isinstance(item, bool | int | float | complex | str | bytes | np.generic) or getattr(item, "shape", 0) == ()


def _as_array(leaf: Leaf) -> Any:
    if comes_from(leaf, "torch"):
        return leaf.detach().cpu().numpy()
    return as_element(leaf, "Strategy.experimental_distribute_dataset")
