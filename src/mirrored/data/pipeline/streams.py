"""Sequential dataset operations, which compute elements one after the other, most of them with Grain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from mirrored._typing import PyTree
from mirrored.data import specs
from mirrored.data.calling import call, transformed
from mirrored.data.cursors import (
    Cursor,
    InterleaveCursor,
    IterableCursor,
    Iterators,
    RebatchCursor,
    SequenceCursor,
    StrideCursor,
    WindowCursor,
)
from mirrored.data.elements import Element, own_element, pad_and_stack, stack
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.pipeline.indexed import padded_spec
from mirrored.data.pipeline.nodes import (
    LikeParent,
    Node,
    Run,
    StreamNode,
    first_element,
    inner_run,
    merged_spec,
    new_seed,
    spec_of_first,
)
from mirrored.data.placement import batch_size
from mirrored.data.specs import NoElementError
from mirrored.errors import StructureError


@dataclasses.dataclass(frozen=True, eq=False)
class StreamStep(LikeParent, StreamNode):
    """Base class of sequential operations with one input dataset.

    The number, shapes and dtypes of the elements are those of the input unless a subclass overrides them.
    """

    parent: Node


@dataclasses.dataclass(frozen=True, eq=False)
class IterableSource(StreamNode):
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

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return self.signature if self.signature is not None else specs.spec_of(first_element(self))

    def stream(self, run: Run) -> Any:
        return engine().by_cursor(lambda: IterableCursor(self._make, self._convert), self.called)

    def _make(self) -> Any:
        return _Noting(self._iterators(), self.called)  # type: ignore[attr-defined]

    def _convert(self, value: PyTree, index: int) -> Element:
        try:
            element = own_element(value, self.called)
            return element if self.signature is None else specs.check(self.signature, element, self.called)
        except StructureError as error:
            error.add_note(f"{self.called}: at element {index}")
            raise


class _Noting:
    """An iterator that adds to exceptions the index of the element at which they were raised."""

    def __init__(self, iterable: Iterable[Any], called: str) -> None:
        self._iterator, self._called, self._count = iter(iterable), called, 0

    def __iter__(self) -> _Noting:
        return self

    def __next__(self) -> Any:
        try:
            value = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            error.add_note(f"{self._called}: at element {self._count}")
            raise
        self._count += 1
        return value

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


@dataclasses.dataclass(frozen=True, eq=False)
class StreamMapped(StreamStep):
    """The operation `map` on a sequential dataset: applies `function` to every element."""

    function: Callable[..., Any]
    called: str = "Dataset.map"

    @property
    def spec(self) -> Any:
        sample = first_element(self.parent)
        return specs.after_map(self.parent.spec, sample, transformed(self.function, sample, self.called, 0))

    def stream(self, run: Run) -> Any:
        def apply(index: int, element: Element) -> Element:
            return transformed(self.function, element, self.called, index)

        return engine().map_with_index(self.parent.stream(run), apply)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamRandomMapped(StreamStep):
    """The operation `random_map` on a sequential dataset: applies `function(element, rng)` to every element."""

    function: Callable[..., Any]
    seed: int

    @property
    def spec(self) -> Any:
        return specs.after_map(self.parent.spec, first_element(self.parent), first_element(self))

    def stream(self, run: Run) -> Any:
        def apply(index: int, element: Element) -> Element:
            rng = np.random.default_rng((run.seeds.get(id(self), self.seed), *run.path, index))
            return transformed(lambda *parts: self.function(*parts, rng), element, "Dataset.random_map", index)

        return engine().map_with_index(self.parent.stream(run), apply)


@dataclasses.dataclass(frozen=True, eq=False)
class Filtered(StreamStep):
    """The operation `filter`: keeps the elements for which `function` returns True."""

    function: Callable[..., Any]

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    def stream(self, run: Run) -> Any:
        # The first map evaluates the predicate with the element's index, for messages; the second drops its result.
        def judged(index: int, element: Element) -> tuple[bool, Element]:
            return bool(call(self.function, element, "Dataset.filter", index)), element

        kept = engine().filter_elements(engine().map_with_index(self.parent.stream(run), judged), lambda pair: pair[0])
        return engine().map_with_index(kept, lambda _, pair: pair[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Limited(StreamStep):
    """The operation `take` on a sequential dataset: keeps the first `count` elements."""

    count: int

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        if known == INFINITE_CARDINALITY:
            return self.count
        return min(known, self.count) if known >= 0 else known

    def stream(self, run: Run) -> Any:
        if self.count == 0:
            return engine().by_cursor(lambda: IterableCursor(tuple, _same), "take")
        return engine().limit(self.parent.stream(run), self.count)


def _same(value: Element, _: int) -> Element:
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class Strided(StreamStep):
    """The operations skip and shard on a sequential dataset: keep every `step`-th element from index `start`."""

    start: int
    step: int = 1

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        return len(range(self.start, known, self.step)) if known >= 0 else known

    def stream(self, run: Run) -> Any:
        return engine().by_cursor(lambda: StrideCursor(self.parent.cursor(run), self.start, self.step), "skip")


@dataclasses.dataclass(frozen=True, eq=False)
class StreamRepeated(StreamStep):
    """The operation `repeat` on a sequential dataset: `count` epochs, or infinitely many if `count` is -1."""

    count: int

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        if self.count < 0:
            return 0 if known == 0 else INFINITE_CARDINALITY
        return known * self.count if known >= 0 else known

    def stream(self, run: Run) -> Any:
        def epoch(number: int) -> Cursor | None:
            if 0 <= self.count <= number:
                return None
            return self.parent.cursor(run.epoch(number))

        return engine().by_cursor(lambda: SequenceCursor(epoch, needs_elements=True), "repeat")


@dataclasses.dataclass(frozen=True, eq=False)
class StreamZipped(StreamNode):
    """The operation `zip` on sequential datasets: combines elements at the same index into a pytree."""

    members: tuple[Node, ...]
    treedef: Any

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.members

    @property
    def cardinality(self) -> int:
        known = [member.cardinality for member in self.members]
        if UNKNOWN_CARDINALITY in known:
            return UNKNOWN_CARDINALITY
        return min((count for count in known if count >= 0), default=INFINITE_CARDINALITY)

    @property
    def spec(self) -> Any:
        return self.treedef.unflatten([member.spec for member in self.members])

    def stream(self, run: Run) -> Any:
        zipped = engine().zip_shortest([member.stream(run) for member in self.members])
        return engine().map_with_index(zipped, lambda _, parts: self.treedef.unflatten(parts))


@dataclasses.dataclass(frozen=True, eq=False)
class StreamConcatenated(StreamNode):
    """The operation `concatenate` on sequential datasets."""

    members: tuple[Node, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.members

    @property
    def cardinality(self) -> int:
        known = [member.cardinality for member in self.members]
        for special in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
            if special in known:
                return special
        return sum(known)

    @property
    def spec(self) -> Any:
        return merged_spec(self.members)

    def stream(self, run: Run) -> Any:
        def part(number: int) -> Cursor | None:
            return self.members[number].cursor(run) if number < len(self.members) else None

        return engine().by_cursor(lambda: SequenceCursor(part), "concatenate")


@dataclasses.dataclass(frozen=True, eq=False)
class StreamBatched(StreamStep):
    """The operations `batch` and `padded_batch` on a sequential dataset: stack every `size` elements.

    If `padding` is a pair (shapes, values), the elements are padded to one shape first.
    """

    size: int
    drop_remainder: bool
    padding: tuple[Any, Any] | None = None

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        return known if known < 0 else known // self.size if self.drop_remainder else -(-known // self.size)

    @property
    def spec(self) -> Any:
        size = self.size if self.drop_remainder else None
        if self.padding is not None:
            return padded_spec(self.parent.spec, size, self.padding[0])
        return specs.map_specs(lambda leaf: leaf.batched(size), self.parent.spec)

    def stream(self, run: Run) -> Any:
        return engine().batch(self.parent.stream(run), self.size, self.drop_remainder, self._make_batch)

    def _make_batch(self, elements: Sequence[Element]) -> Element:
        if self.padding is None:
            return stack(elements)
        return pad_and_stack(elements, *self.padding, "Dataset.padded_batch")


@dataclasses.dataclass(frozen=True, eq=False)
class Rebatched(StreamStep):
    """The operation `rebatch`: regroups the examples of batches into batches of other sizes, in turn."""

    sizes: tuple[int, ...]
    drop_remainder: bool

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        size = self.sizes[0] if self.drop_remainder and len(set(self.sizes)) == 1 else None
        return specs.map_specs(lambda leaf: leaf.unbatched().batched(size), self.parent.spec)

    def stream(self, run: Run) -> Any:
        return engine().by_cursor(
            lambda: RebatchCursor(self.parent.cursor(run), self.sizes, self.drop_remainder), "rebatch"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Unbatched(StreamStep):
    """The operation `unbatch`: splits every batch into its examples."""

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY if self.parent.cardinality == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return specs.map_specs(lambda leaf: leaf.unbatched(), self.parent.spec)

    def stream(self, run: Run) -> Any:
        return engine().unbatch(self.parent.stream(run), _rows_of)


def _rows_of(element: Element) -> list[Element]:
    count = batch_size(element, "Dataset.unbatch")
    return [jax.tree.map(lambda leaf, row=row: leaf[row], element) for row in range(count)]


@dataclasses.dataclass(frozen=True, eq=False)
class Interleaved(StreamStep):
    """The operation `interleave` or `flat_map`: maps each element to a dataset, and interleaves these datasets.

    Attributes:
        open_input: From an element and its index to the node of a dataset.
        cycle: Number of datasets read concurrently; 1 is flat_map.
        block: Number of consecutive elements from one dataset.
        seed: Determines the seeds that steps of these datasets draw.
    """

    makes_datasets: ClassVar[bool] = True

    open_input: Callable[[Element, int], Node]
    cycle: int
    block: int
    seed: int = dataclasses.field(default_factory=new_seed)

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        try:
            return self.open_input(first_element(self.parent), 0).spec
        except NoElementError:
            return spec_of_first(self)

    def stream(self, run: Run) -> Any:
        def opened(element: Element, number: int) -> Cursor:
            node = self.open_input(element, number)
            return node.cursor(inner_run(node, run, number, run.seeds.get(id(self), self.seed)))

        return engine().by_cursor(
            lambda: InterleaveCursor(self.parent.cursor(run), opened, self.cycle, self.block), "interleave"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Windowed(StreamStep):
    """The operation `window`: groups elements into windows, and yields `make(elements)` for each window."""

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    make: Callable[[list[Element]], Element]

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
            return WindowCursor(self.parent.cursor(run), self.size, self.shift, self.stride, self.drop_remainder)

        windows = engine().by_cursor(cursor, "window")
        return engine().map_with_index(windows, lambda _, elements: self.make(elements))


@dataclasses.dataclass(frozen=True, eq=False)
class StreamPrefetched(StreamStep):
    """The operation `prefetch` on a sequential dataset: prefetches elements in a background thread."""

    size: int

    def stream(self, run: Run) -> Any:
        return engine().thread_prefetch(self.parent.stream(run), self.size)
