"""Dataset operations with state, whose output depends on earlier elements: scan, unique, take_while, ...

A saved position is a number of elements. Restoring it reads these elements again, since the state can be of any type.
Only `take_while` restores its parent's position directly.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import numpy as np

from mirrored._jax.trees import tree_map
from mirrored.data import specs
from mirrored.data.calling import call, is_true, naming_element, no_end
from mirrored.data.cursors import Cursor, IterableCursor
from mirrored.data.elements import Element, as_element, handed_out, keeps_values, own_element
from mirrored.data.options import UNKNOWN_CARDINALITY
from mirrored.data.pipeline.inner_runs import inner_run
from mirrored.data.pipeline.nodes import (
    CursorNode,
    Node,
    Run,
    elements_of,
    first_element,
    spec_of_first,
)
from mirrored.data.pipeline.seeds import Passes, new_seed
from mirrored.data.pipeline.streams import StreamStep
from mirrored.data.specs import NoElementError
from mirrored.errors import ArgumentError, InputError, StructureError
from mirrored.runtime.element_draws import FunctionStreamId


@dataclasses.dataclass(frozen=True, eq=False)
class StatefulStep(StreamStep, CursorNode):
    """Base class of dataset operations with state; a subclass implements the Python generator `over`."""

    replays: ClassVar[bool] = True

    @abc.abstractmethod
    def over(self, elements: Iterator[Element], run: Run) -> Iterator[Element]:
        """Yields the output elements of the operation, given an iterator over the input elements."""

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def open_cursor(self, run: Run) -> Cursor:
        return IterableCursor(lambda: self.over(elements_of(self.parent, run), run), lambda element, _: element)


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned(StatefulStep):
    """The operation `scan`: calls ``state, out = function(state, element)`` and yields each `out`."""

    draws: ClassVar[bool] = True

    initial_state: Element
    function: Callable[[Any, Any], Any]

    @property
    def cardinality(self) -> int:
        return int(self.parent.cardinality)

    @property
    def spec(self) -> Any:
        return specs.after_map(self.parent.spec, first_element(self.parent), first_element(self))

    def over(self, elements: Iterator[Element], run: Run) -> Iterator[Element]:
        state, called, draws = tree_map(_copied, self.initial_state), "Dataset.scan", run.draws_of(self)
        for index, element in enumerate(elements):
            pair = call(Given(self.function, state, element), element, called, index, draws)
            with naming_element(called, index):
                state, out = self._checked(pair, state)
            yield out

    def _checked(self, pair: object, old: Element) -> tuple[Element, Element]:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise StructureError(
                "Dataset.scan",
                found=f"scan_func returned {type(pair).__name__}",
                rule="scan_func must return a pair: the next state and the output element",
                remedy="return (state, element)",
            )
        state = _like(old, own_element(pair[0], "Dataset.scan", narrow=False))
        return state, own_element(pair[1], "Dataset.scan")


@dataclasses.dataclass(frozen=True)
class Given:
    """A callable that ignores its arguments and returns `function(state, element)`."""

    function: Callable[[Any, Any], Any]
    state: Element
    element: Element

    def __call__(self, *_: object) -> Any:
        # `calling.call` would unpack a tuple into several arguments.
        return self.function(handed_out(self.state), handed_out(self.element))


class NextState(Given):
    """Calls the function of `Dataset.reduce`; if the result is a list, converts it to the structure of the state."""

    def __call__(self, *_: object) -> Any:
        result = super().__call__()
        if not isinstance(result, list):
            return result
        if isinstance(self.state, tuple):
            return getattr(type(self.state), "_make", tuple)(result)
        is_one = len(result) == 1 and np.ndim(result[0]) == np.ndim(self.state)
        return result[0] if is_one else as_element(result, "Dataset.reduce")


def _copied(leaf: object) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _like(old: Element, new: Element) -> Element:
    """Casts the next state of a `scan` to the dtypes of the old state; raises StructureError if structures differ."""
    before: Any = jax.tree.structure(old)
    after: Any = jax.tree.structure(new)
    leaves = list(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=False))
    if before != after or not all(_can_become(b, _dtype(a)) for a, b in leaves):
        raise StructureError(
            "Dataset.scan",
            found=f"scan_func changed the state from {specs.spec_of(old)} to {specs.spec_of(new)}",
            rule="the state must keep its structure and dtypes",
            remedy="cast the next state, or pass an initial_state of that dtype",
        )
    return tree_map(lambda a, b: b if _dtype(a) == _dtype(b) else b.astype(_dtype(a)), old, new)


def _can_become(leaf: Any, dtype: np.dtype[Any]) -> bool:
    """Returns whether a leaf can be cast to a dtype; for an integer dtype, only if the values are preserved."""
    return np.can_cast(_dtype(leaf), dtype, "same_kind") and (dtype.kind not in "iu" or keeps_values(leaf, dtype))


def _dtype(leaf: object) -> np.dtype[Any]:
    return np.dtype(getattr(leaf, "dtype", object))


@dataclasses.dataclass(frozen=True, eq=False)
class Unique(StatefulStep):
    """The operation `unique`: removes elements that have occurred before."""

    def over(self, elements: Iterator[Element], run: Run) -> Iterator[Element]:
        seen = set()
        for index, element in enumerate(elements):
            with naming_element("Dataset.unique", index):
                key = _identity(element)
            if key not in seen:
                seen.add(key)
                yield element


def _identity(element: Element) -> Any:
    if isinstance(element, bytes):
        return element
    if not isinstance(element, np.ndarray | np.generic) or element.dtype.kind not in "iubOSU":
        raise StructureError(
            "Dataset.unique",
            found=f"the element {specs.spec_of(element)}",
            rule="each element passed to unique must be one array of integers, booleans or strings",
            remedy="map them to such a key; floating-point numbers are rarely equal",
        )
    # The bytes of equal strings differ if their dtypes have other lengths.
    return element.shape, tuple(element.ravel().tolist()) if element.dtype.kind in "OSU" else element.tobytes()


@dataclasses.dataclass(frozen=True, eq=False)
class Grouped(StatefulStep):
    """The operation `group_by_window`: groups elements by key into windows, and yields each window's reduced elements.

    Attributes:
        key: From an element to an integer key.
        size: From a key to the size of its windows.
        reduce: From a key, the elements of a window and the window's index to the node of a dataset.
        sizes: The sizes of the windows, or the boundaries and batch sizes of the buckets, for saved positions.
        seed: Determines the seeds that steps of these datasets draw.
        passes: Counts the passes.
    """

    makes_datasets: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    key: Callable[..., Any]
    size: Callable[[Any], Any]
    reduce: Callable[[Any, list[Element], int], Node]
    sizes: str = ""
    seed: int = dataclasses.field(default_factory=new_seed)
    passes: Passes = dataclasses.field(default_factory=Passes, kw_only=True)

    @property
    def settings(self) -> str:
        return self.sizes

    @property
    def spec(self) -> Any:
        first = first_element(self.parent)
        key = self._key_of(first, 0, Run())
        try:
            return specs.map_specs(_open_batch, self.reduce(np.int64(key), [first], 0).spec)
        except NoElementError:
            return spec_of_first(self)

    def over(self, elements: Iterator[Element], run: Run) -> Iterator[Element]:
        groups: dict[int, list[Element]] = {}
        windows = 0
        for index, element in enumerate(elements):
            key = self._key_of(element, index, run)
            group = groups.setdefault(key, [])
            group.append(element)
            if len(group) >= self._size_of(key):
                yield from self._reduced(key, groups.pop(key), windows, run)
                windows += 1
        for number, key in enumerate(sorted(groups), windows):
            yield from self._reduced(key, groups[key], number, run)

    def _reduced(self, key: int, window: list[Element], number: int, run: Run) -> Iterator[Element]:
        node = self.reduce(np.int64(key), window, number)
        return elements_of(node, inner_run(node, run, number, self))

    def _key_of(self, element: Element, index: int, run: Run) -> int:
        found = call(self.key, element, "Dataset.group_by_window", index, run.draws_of(self))
        return _integer(found, "key_func", "a scalar integer")

    def _size_of(self, key: int) -> int:
        with no_end("Dataset.group_by_window, window_size_func"):
            given = self.size(np.int64(key))
        size = _integer(given, "window_size_func", "a scalar integer of at least 1")
        if size < 1:
            raise ArgumentError(
                "Dataset.group_by_window",
                found=f"a window of {size} elements for the key {key}",
                rule="a window must have at least one element",
                remedy="pass a larger window_size",
            )
        return size


def _open_batch(spec: specs.ArraySpec) -> specs.ArraySpec:
    """Replaces the leading dim of a batch's spec by None, because windows have varying numbers of elements."""
    return specs.ArraySpec((None, *spec.shape[1:]), spec.dtype) if spec.shape else spec


def _integer(value: object, name: str, rule: str) -> int:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iub":
        raise StructureError(
            "Dataset.group_by_window",
            found=f"{name} returned {value!r}",
            rule=f"{name} must return {rule}",
            remedy="cast the result to an integer",
        )
    return int(array)


@dataclasses.dataclass(frozen=True, eq=False)
class Resampled(StatefulStep):
    """The operation `rejection_resample`: drops elements at random to reach a target class distribution.

    It returns pairs (class, element). The elements of the parent are pairs (element, uniform number in [0, 1)).

    Attributes:
        class_of: From an element to its class.
        target: The target frequency of each class.
        initial: The actual frequency of each class, or None to count them.

    Source: rejection sampling. The streaming count starts at 10 for every class, as in TensorFlow.
    """

    draws: ClassVar[bool] = True

    class_of: Callable[..., Any]
    target: np.ndarray
    initial: np.ndarray | None

    @property
    def arguments(self) -> str:
        initial = None if self.initial is None else self.initial.tolist()
        # "anew" refuses positions of earlier versions, which dropped the same elements in each epoch.
        return f"rejection_resample(target_dist={self.target.tolist()}, initial_dist={initial}), anew in each epoch"

    @property
    def spec(self) -> Any:
        element = first_element(self.parent)[0]
        return specs.spec_of(np.int32(0)), specs.after_map(self.parent.spec[0], element, element)

    def over(self, elements: Iterator[Element], run: Run) -> Iterator[Element]:
        counts, called, draws = np.full(self.target.shape, 10.0), "Dataset.rejection_resample", run.draws_of(self)
        for index, (element, uniform) in enumerate(elements):
            found = self._checked(call(self.class_of, element, called, index, draws), index)
            counts[found] += 1
            wanted: np.ndarray = self.target / np.maximum(
                counts / counts.sum() if self.initial is None else self.initial, 1e-30
            )
            if uniform * wanted.max() < wanted[found]:
                yield np.int32(found), element

    def _checked(self, value: object, index: int) -> int:
        array = np.asarray(value)
        if array.shape != () or array.dtype.kind not in "iub" or not 0 <= array < len(self.target):
            raise StructureError(
                "Dataset.rejection_resample",
                found=f"class_func returned {value!r} for element {index}",
                rule=f"a class must be an integer in [0, {len(self.target)}), an index into target_dist",
                remedy="return an index into target_dist for every label",
            )
        return int(array)


@dataclasses.dataclass(frozen=True, eq=False)
class TakenWhile(StreamStep, CursorNode):
    """The operation `take_while`: keeps the elements before the first one for which `function` returns False."""

    draws: ClassVar[bool] = True

    function: Callable[..., Any]

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def open_cursor(self, run: Run) -> Cursor:
        return _WhileCursor(self.parent.cursor(run), self.function, run.draws_of(self))


class _WhileCursor:
    def __init__(self, parent: Cursor, function: Callable[..., Any], draws: FunctionStreamId) -> None:
        self._parent, self._function, self._draws = parent, function, draws
        self._count, self._ended = 0, False

    def __next__(self) -> Element:
        if self._ended:
            raise StopIteration
        element = next(self._parent)
        self._count += 1
        if not is_true(self._function, element, "Dataset.take_while", self._count - 1, self._draws):
            self._ended = True
            raise StopIteration
        return element

    def get_state(self) -> Any:
        return {"count": self._count, "ended": self._ended, "parent": self._parent.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._count, self._ended = state["count"], state["ended"]
        self._parent.set_state(state["parent"])

    def close(self) -> None:
        self._parent.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Promised(StatefulStep):
    """The operation `assert_cardinality`: checks while reading that the number of elements is the declared one."""

    count: int

    @property
    def cardinality(self) -> int:
        return self.count

    def over(self, elements: Iterator[Element], run: Run) -> Iterator[Element]:
        seen = 0
        for element in elements:
            seen += 1
            if 0 <= self.count < seen:
                raise _cardinality_error(self.count, "more")
            yield element
        if seen != self.count:
            raise _cardinality_error(self.count, str(seen))


def _cardinality_error(promised: int, found: str) -> InputError:
    return InputError(
        "assert_cardinality",
        found=f"the dataset has {found} elements, expected_cardinality is {promised}",
        rule="the dataset must have exactly the expected number of elements",
        remedy="pass the actual number of elements, or omit assert_cardinality",
    )
