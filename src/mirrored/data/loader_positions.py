"""Iterators over loaders with `state_dict` and `load_state_dict`, such as torchdata's `StatefulDataLoader`.

The state belongs to the loader, and all its iterations share it: `load_state_dict` holds for the next iteration. A read
only to see the shapes of a batch would take that state away, or move the loader on.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Any

from mirrored.data.elements import Element
from mirrored.data.foreign import ForeignCursor
from mirrored.data.specs import spec_of
from mirrored.errors import ArgumentError


class LoaderCursor(ForeignCursor):
    """An iterator over a loader with `state_dict`; its saved position is the loader's state.

    Args:
        data: The loader.
        make: Creates an iterator of the loader.
        note_spec: Receives the spec of the first element.
    """

    def __init__(self, data: Any, make: Callable[[], Any], note_spec: Callable[[Any], object]) -> None:
        super().__init__(data, make)
        self._note_spec: Callable[[Any], object] | None = note_spec
        self._start: dict[str, Any] | None = None  # the position, until the first element is returned
        self._peeked: list[Element] = []  # the first element, if it was read for its spec and is not returned yet
        self._is_new = True  # nothing was read
        self._may_be_at_end = False  # of the epoch before
        # Reentrant: an interrupt that leaves it held must not block the next call of the same thread.
        self._lock = threading.RLock()

    def __next__(self) -> Element:
        with self._lock:
            element = self._peeked.pop() if self._peeked else self._read()
            self._start = None
            return element

    def _read(self) -> Element:
        self._is_new = False
        try:
            element = super().__next__()
        except StopIteration:
            if not self._may_be_at_end:
                raise
            self.close()
            self._may_be_at_end = False
            element = super().__next__()
        self._may_be_at_end = False
        if self._note_spec is not None:
            self._note_spec(spec_of(element))
            self._note_spec = None
        return element

    @property
    def is_new(self) -> bool:
        """Whether no element has been read or peeked at yet."""
        return self._is_new

    def peek(self) -> None:
        """Reads the first element to learn its shapes and dtypes; the next call of `next` returns this element."""
        with self._lock:
            if self._is_new:
                self.get_state()
                self._peeked.append(self._read())

    def close(self) -> None:
        self._is_new = False  # what is read now would begin another iteration, and be lost
        super().close()

    def retry_empty_start(self) -> None:
        """Makes the first read restart a loader that yields no element.

        The loader may yield none because its state is at the end of an epoch.
        """
        self._may_be_at_end = True

    def get_state(self) -> Any:
        with self._lock:
            if self._start is not None:
                return copy.deepcopy(self._start)
            if not self._is_new:
                return self._position()
            # The loader has the position of the iteration before. One that makes a new iterator here is at the start
            # of the epoch afterwards; a generator begins later, so its position can be the end of the epoch before.
            if self._iterator is None:
                self._iterator = self._begin()
            self._start = {**self._position(), "begun": False}
            return copy.deepcopy(self._start)

    def _position(self) -> dict[str, Any]:
        # A copy: reading ahead changes a dict that the loader returns and goes on using.
        size = self._size()
        return {
            "loader": copy.deepcopy(self._data.state_dict()),
            **({} if size is None else {"batch_size": size}),
        }

    def _size(self) -> int | None:
        size = getattr(self._data, "batch_size", None)
        return size if type(size) is int else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Loads a saved state into the loader.

        Raises:
            ArgumentError: The loader has another batch size than when the position was saved.
        """
        loader, saved, size = copy.deepcopy(state["loader"]), state.get("batch_size"), self._size()
        if None not in (saved, size) and saved != size:
            raise ArgumentError(
                "DistributedIterator.set_state",
                found=f"the position was saved with batch_size={saved}, and this {type(self._data).__name__} has "
                f"batch_size={size}",
                rule="the state_dict of a loader counts its batches, so it fits only batches of the same size",
                remedy=f"build the loader with batch_size={saved} until the epoch ends, or omit the iterator from the "
                "checkpoint and begin a new epoch",
            )
        with self._lock:
            self.close()
            self._data.load_state_dict(loader)
            self._count, self._error, self._is_interrupted = 0, None, False
            self._start, self._peeked, self._is_new = copy.deepcopy(state), [], True
            self._may_be_at_end = not state.get("begun", True)


class LoaderCursors:
    """Opens iterators over a loader, and infers the elements' shapes and dtypes without losing an element.

    Args:
        data: The loader.
        make: Creates an iterator of the loader.
    """

    def __init__(self, data: Any, make: Callable[[], Any]) -> None:
        self._data, self._make = data, make
        self._specs: list[Any] = []
        self._latest: Callable[[], LoaderCursor | None] = lambda: None
        self._was_probed = False

    def open(self) -> LoaderCursor:
        """Returns a new iterator over the loader."""
        cursor = LoaderCursor(self._data, self._make, self._specs.append)
        if self._was_probed:
            self._was_probed = False
            cursor.retry_empty_start()
        self._latest = weakref.ref(cursor)
        return cursor

    def spec(self) -> Any:
        """Returns the shapes and dtypes of the first element; an element read for this purpose is still returned later.

        Raises:
            StopIteration: The loader has no element.
        """
        if not self._specs:
            latest = self._latest()
            if latest is not None and latest.is_new:
                latest.peek()
            else:
                self._probe()
        return self._specs[0]

    def _probe(self) -> None:
        state = copy.deepcopy(self._data.state_dict())
        probe = LoaderCursor(self._data, self._make, self._specs.append)
        try:
            next(probe)
        finally:
            probe.close()
            self._data.load_state_dict(state)
            self._was_probed = True
