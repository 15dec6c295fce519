"""Dataset operations that can compute their elements only one after the other: filter, interleave, window, ..."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from mirrored._jax.arrays import frozen
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.data import specs
from mirrored.data.calling import Iterators, is_true
from mirrored.data.cursors import (
    Cursor,
    Failed,
    IterableCursor,
    RebatchCursor,
    beyond_end_error,
    read_again,
)
from mirrored.data.elements import Element, own_element
from mirrored.data.extra import engine
from mirrored.data.feed import log
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.pipeline.ignoring_errors import FailingReads, mapped, raise_failed
from mirrored.data.pipeline.inner_runs import inner_run
from mirrored.data.pipeline.interleaving import InterleaveCursor
from mirrored.data.pipeline.left_out import LeftOut, left_out_in
from mirrored.data.pipeline.nodes import (
    CursorNode,
    LikeParent,
    Node,
    Run,
    first_element,
    spec_of_first,
)
from mirrored.data.pipeline.seeds import Passes, new_seed
from mirrored.data.pipeline.unbatching import UnbatchCursor
from mirrored.data.specs import NoElementError
from mirrored.errors import StructureError
from mirrored.runtime.element_draws import FunctionStreamId


@dataclasses.dataclass(frozen=True, eq=False)
class StreamStep(LikeParent, Node):
    """Base class of sequential operations with one input dataset.

    The number, shapes and dtypes of the elements are those of the input unless a subclass overrides them.
    """

    parent: Node


@dataclasses.dataclass(frozen=True, eq=False)
class IterableSource(CursorNode):
    """A dataset of the elements that a Python iterable yields.

    Attributes:
        make: Creates the iterable, once for every iteration.
        signature: The spec of its elements, or None.
        called: The function that the user called, for messages.
    """

    make: Callable[[], Any]
    signature: Any
    called: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_iterators", Iterators(self.make, self.called))
        object.__setattr__(self, "_warned", set())
        object.__setattr__(self, "_firsts", collections.deque(maxlen=1))

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return self.signature if self.signature is not None else specs.spec_of(first_element(self))

    def open_cursor(self, run: Run) -> Cursor:
        return IterableCursor(self._make, self._convert, self._note_first)

    def take_first(self) -> Element | None:
        """Removes and returns the cached first element of the iterable.

        A restored iterator caches the element when it reads the elements before its position again. Returns None if no
        element is cached.
        """
        firsts = self._firsts  # type: ignore[attr-defined]
        return firsts.pop() if firsts else None

    def _note_first(self, value: PyTree) -> None:
        with contextlib.suppress(Exception):  # elements of unknown types
            self._firsts.append(own_element(value, self.called))  # type: ignore[attr-defined]

    def _make(self) -> Any:
        return _GuardedIterator(self._iterators, self.called, self._warned)  # type: ignore[attr-defined]

    def _convert(self, value: PyTree, index: int) -> Element:
        try:
            if self.signature is None:
                return own_element(value, self.called)
            return specs.check(self.signature, own_element(value, self.called, narrow=False), self.called)
        except StructureError as error:
            error.add_note(f"{self.called}: at element {index}")
            raise


class _GuardedIterator:
    """A wrapper of an iterator that adds to each exception the index of the element that was being read.

    A generator ends at an exception. Behind other iterators (`map`, `zip`, a class) this is seen only by the end of the
    data right after the exception, which can also be the true end. If it was an interrupt, the elements are read again.

    Args:
        make: Creates the iterator.
        called: The function that the user called, for messages.
        warned: Receives `called` with the first warning, which is not repeated.
    """

    def __init__(self, make: Callable[[], Iterator[Any]], called: str, warned: set[str]) -> None:
        self._make, self._called, self._warned = make, called, warned
        self._iterator, self._count = make(), 0
        self._raised: type[BaseException] | None = None  # by the last call

    def __iter__(self) -> _GuardedIterator:
        return self

    def __repr__(self) -> str:
        return repr(self._iterator)

    @property
    def gi_frame(self) -> Any:
        """The `gi_frame` of the wrapped generator, which is None after the generator has ended.

        For an iterator that is no generator, the value is `self`, so that it is never None.
        """
        return getattr(self._iterator, "gi_frame", self)

    def __next__(self) -> Any:
        raised, self._raised = self._raised, None
        try:
            value = next(self._iterator)
        except StopIteration:
            if raised is None:
                raise
            self._after_end(raised)
            return next(self)
        except BaseException as error:
            self._raised = type(error)
            if isinstance(error, Exception):
                error.add_note(f"{self._called}: at element {self._count}")
            raise
        self._count += 1
        return value

    def _after_end(self, raised: type[BaseException]) -> None:
        """Restarts the iterator if an interrupt ended it; otherwise warns of lost elements and raises StopIteration."""
        if not issubclass(raised, Exception):
            self._raised = raised  # if reading again is interrupted
            self.close()
            iterator = self._make()
            for _ in range(self._count):
                read_again(iterator)
            self._iterator, self._raised = iterator, None
            return
        if self._called not in self._warned:
            self._warned.add(self._called)
            log.warning(
                "%s: the iterator (%s) ended right after it raised %s at element %d. If it reads from a generator, "
                "which ends at an exception, the elements after this one are lost: catch the exception in the "
                "generator, or call the function that raises it in Dataset.map",
                self._called,
                type(self._iterator).__name__,
                raised.__name__,
                self._count,
            )
        raise StopIteration

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


@dataclasses.dataclass(frozen=True, eq=False)
class Filtered(StreamStep):
    """The operation `filter`: keeps the elements for which `function` returns True."""

    draws: ClassVar[bool] = True

    function: Callable[..., Any]

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    def stream(self, run: Run) -> Any:
        # The first map evaluates the predicate with the element's index; the second drops its result.
        draws = run.draws_of(self)

        def judged(index: int, element: Element) -> tuple[bool, Element]:
            return is_true(self.function, element, "Dataset.filter", index, draws), element

        kept = engine().filter_elements(mapped(self.parent, run, judged, self.name), lambda pair: pair[0])
        return engine().map_with_index(kept, lambda _, pair: pair[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Rebatched(StreamStep, CursorNode):
    """The operation `rebatch`: regroups the examples of batches into batches of other sizes."""

    sizes: tuple[int, ...]
    drop_remainder: bool

    @property
    def grouping(self) -> str:
        return f"rebatch({', '.join(map(str, self.sizes))}, drop_remainder={self.drop_remainder})"

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        size = self.sizes[0] if self.drop_remainder and len(set(self.sizes)) == 1 else None
        return specs.map_specs(lambda leaf: leaf.unbatched().batched(size), self.parent.spec)

    def open_cursor(self, run: Run) -> Cursor:
        return RebatchCursor(self.parent.cursor(run), self.sizes, self.drop_remainder)


@dataclasses.dataclass(frozen=True, eq=False)
class Unbatched(StreamStep, CursorNode):
    """The operation `unbatch`: splits every batch into its examples."""

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return specs.map_specs(lambda leaf: leaf.unbatched(), self.parent.spec)

    def open_cursor(self, run: Run) -> Cursor:
        return UnbatchCursor(self.parent.cursor(run))


@dataclasses.dataclass(frozen=True, eq=False)
class Interleaved(StreamStep, CursorNode):
    """The operation `interleave` or `flat_map`: maps each element to a dataset, and interleaves these datasets.

    Attributes:
        open_input: From an element, its index and the random numbers of the function to the node of a dataset.
        cycle: Number of datasets read concurrently; 1 is flat_map.
        block: Number of consecutive elements from one dataset.
        seed: Determines the seeds that steps of these datasets draw.
        passes: Counts the passes.
    """

    makes_datasets: ClassVar[bool] = True
    replays: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    open_input: Callable[[Element, int, FunctionStreamId], Node]
    cycle: int
    block: int
    seed: int = dataclasses.field(default_factory=new_seed)
    passes: Passes = dataclasses.field(default_factory=Passes, kw_only=True)

    @property
    def order(self) -> str:
        return f"interleave(cycle_length={self.cycle}, block_length={self.block})" if self.cycle > 1 else ""

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        try:
            return self.open_input(first_element(self.parent), 0, Run().draws_of(self)).spec
        except NoElementError:
            return spec_of_first(self)

    def open_cursor(self, run: Run) -> Cursor:
        def opened(element: Element, number: int) -> Cursor:
            node = self.open_input(element, number, run.draws_of(self))
            return node.cursor(inner_run(node, run, number, self))

        saved = frozenset[int]() if run.inner is None else run.inner.saved_indices(self, run)

        def passed(element: Element, number: int) -> None:
            if number not in saved:
                return
            try:
                node = self.open_input(element, number, run.draws_of(self))
            except Exception as error:
                if not _is_missing_file(error):  # such as one that has been deleted since it was read
                    raise
                return
            inner_run(node, run, number, self)  # compares it with the saved one, whose seeds the later ones use

        inputs = self.parent.cursor(run)
        left_out = left_out_in(run) if run.ignores_errors else None
        return InterleaveCursor(inputs, opened, self.cycle, self.block, passed, left_out)


def _is_missing_file(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, FileNotFoundError) or _is_missing_file(error.__cause__))


@dataclasses.dataclass(frozen=True, eq=False)
class Windowed(StreamStep):
    """The operation `window`: groups elements into windows, and yields `make(elements)` for each window."""

    replays: ClassVar[bool] = True

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    make: Callable[[list[Element]], Element]

    @property
    def settings(self) -> str:
        return f"window({self.size}, shift={self.shift}, stride={self.stride})"

    @property
    def grouping(self) -> str:
        return "window(drop_remainder=True)" if self.drop_remainder else ""

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        if known < 0:
            return known
        reach = (self.size - 1) * self.stride + 1
        return max(0, (known - reach) // self.shift + 1) if self.drop_remainder else -(-known // self.shift)

    @property
    def spec(self) -> Any:
        return specs.spec_of(first_element(self))

    def stream(self, run: Run) -> Any:
        def cursor() -> Cursor:
            return WindowCursor(self.parent.cursor(run), self, left_out_in(run) if run.ignores_errors else None)

        windows = engine().by_cursor(cursor, "window")
        return engine().map_with_index(windows, lambda _, elements: self.make(elements))


class WindowCursor:
    """An iterator that groups another iterator's elements into windows (lists), like `tf.data.Dataset.window`.

    Before `ignore_errors`, an element that raises an exception keeps its place: the windows that contain it are left
    out, and the later windows are the same as without it. An iterator that raises twice at one position cannot go on.

    Args:
        parent: The other iterator.
        node: The operation, with the arguments of `window`.
        left_out: The exceptions that a later `ignore_errors` has left out. None if no `ignore_errors` follows: the
            exception of any element is raised, also between two windows, where `ignore_errors` needs no window to leave
            out.
    """

    def __init__(self, parent: Cursor, node: Windowed, left_out: LeftOut | None) -> None:
        self._parent, self._start = parent, parent.get_state()
        self._reads, self._left_out = FailingReads(parent, left_out is not None), left_out
        self._size, self._shift, self._stride, self._drop = node.size, node.shift, node.stride, node.drop_remainder
        self._overlaps = self._shift < (self._size - 1) * self._stride + 1
        self._ahead: list[Element] = []
        self._ended = False
        self._windows = 0

    def __next__(self) -> Sequence[Element]:
        reach = (self._size - 1) * self._stride + 1
        self._read_ahead(reach)
        window = self._ahead[: reach : self._stride]
        if not window or (self._drop and len(window) < self._size):
            raise StopIteration
        self._windows += 1
        self._leave(self._shift)
        raise_failed(window)
        return window

    def _read_ahead(self, count: int) -> None:
        while len(self._ahead) < count and not self._ended:
            try:
                element = self._reads.read()
            except StopIteration:
                self._ended = True
            else:
                if type(element) is Failed and self._left_out is not None:
                    self._left_out.note(element.error)
                # Overlapping windows share elements. Frozen elements cannot be changed through one of the windows.
                is_shared = self._overlaps and type(element) is not Failed
                self._ahead.append(tree_map(frozen, element) if is_shared else element)

    def _leave(self, count: int) -> None:
        self._read_ahead(count)
        del self._ahead[:count]

    def get_state(self) -> Any:
        return {"windows": self._windows}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(self._start)
        self._reads.forget_exception()
        self._ahead, self._ended, self._windows = [], False, state["windows"]
        for _ in range(self._windows):
            self._read_ahead(1)
            if not self._ahead:
                raise beyond_end_error()
            self._leave(self._shift)

    def close(self) -> None:
        self._parent.close()
