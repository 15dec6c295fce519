"""Traces the body of a loop of converted code, for the names, items and attributes that an iteration changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax

from mirrored._jax.source_lines import user_line
from mirrored._typing import Leaf, Operand, PyTree
from mirrored.tf._autograph.changes import recording, write_all
from mirrored.tf._autograph.effects import existing, tracing
from mirrored.tf._autograph.exceptions import controlled
from mirrored.tf._autograph.nesting import nest
from mirrored.tf._autograph.places import Place
from mirrored.tf._autograph.state import (
    GetState,
    Lost,
    Parts,
    SetState,
    common_dtype,
    inferring,
    is_number,
    is_same,
    is_undefined,
    type_mismatch_error,
    with_stand_ins,
    zeros_like,
)
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.loops import Loop, LoopMismatch
from mirrored.tf._ops.tensor_array import GrowingArrayError
from mirrored.tf._tensors import as_tensor

_MOST_LOOKS = 6  # most traces of one loop body; each retries with the types that the last one inferred


class LoopVariables:
    """The Python variables that a loop carries from one iteration to the next."""

    def __init__(
        self,
        statement: str,
        get_state: GetState,
        set_state: SetState,
        names: Sequence[str],
        places: AbstractSet[Place] = frozenset(),
        looks: int = 0,
        rescued: Sequence[str] = (),
    ) -> None:
        self._statement = statement
        self.rescued = rescued
        self._places = places
        self._looks = looks  # traces that found further places
        self.get, self.set, self.names = get_state, set_state, names

    def loop(
        self,
        body: Callable[..., None],
        test: Callable[[], Any] | None,
        *,
        rows: jax.Array | None = None,
        limit: int | None = None,
        first: Operand | None = None,
    ) -> None:
        """Traces a loop, adds it to the compiled program, and assigns the results to the Python variables."""
        before = self.get()
        try:
            with controlled():
                self._loop(body, test, rows=rows, limit=limit, first=first)
        except GrowingArrayError:
            self.set(before)
            raise
        except InvalidArgumentError:
            self.set(before)
            if not self.rescued:
                raise
            self._carried().loop(body, test, rows=rows, limit=limit, first=first)
        except BaseException:
            self.set(before)
            raise

    def _carried(self) -> LoopVariables:
        """Returns the loop variables without the rescued ones, which the loop loses."""

        def get() -> tuple[Any, ...]:
            return tuple(value for name, value in zip(self.names, self.get(), strict=True) if name not in self.rescued)

        def put(values: tuple[Any, ...]) -> None:
            given = iter(values)
            self.set(tuple(Lost(name) if name in self.rescued else next(given) for name in self.names))

        names = [name for name in self.names if name not in self.rescued]
        return LoopVariables(self._statement, get, put, names, self._places, self._looks)

    def _loop(
        self,
        body: Callable[..., None],
        test: Callable[[], Any] | None,
        *,
        rows: jax.Array | None,
        limit: int | None,
        first: Operand | None,
    ) -> None:
        expected = nest.expected(user_line(), self._places)
        if expected:
            self._with(expected, looks=self._looks)._loop(body, test, rows=rows, limit=limit, first=first)
            return
        before = self.get()
        start = before
        try:
            for _ in range(_MOST_LOOKS):
                attempt = _Attempt(self, start)
                try:
                    with nest.inside(self._places):
                        loop = attempt.traced(body, test, rows)
                except LoopMismatch:
                    loop = None
                if attempt.changed:
                    nest.note(user_line(), attempt.changed)
                    self.set(before)
                    self._with(attempt.changed)._loop(body, test, rows=rows, limit=limit, first=first)
                    return
                converted_start = attempt.converted_start()
                if loop is not None and converted_start is None:
                    self.set(attempt.parts.filled(loop.run(rows=rows, limit=limit, first=first)))
                    return
                start = start if converted_start is None else converted_start
        except BaseException:
            self.set(before)
            raise
        self.set(before)
        raise type_mismatch_error(self._statement, self.names[0], "changes its type with every iteration")

    def _with(self, places: Sequence[Place], looks: int | None = None) -> LoopVariables:
        """Returns the loop variables together with items and attributes that the loop body changes.

        Args:
            places: The items and attributes.
            looks: How many traces have found some. Default: one more than for these variables.

        Raises:
            InvalidArgumentError: The body changes other places in each trace, so no trace knows all of them.
        """
        looks = self._looks + 1 if looks is None else looks
        if looks > _MOST_LOOKS:
            raise self.error(str(places[0]), "is an item or attribute that only one of several traces of the body sets")

        def get() -> tuple[Any, ...]:
            return (*self.get(), *(place.read() for place in places))

        def put(values: tuple[Any, ...]) -> None:
            count = len(values) - len(places)
            self.set(values[:count])
            write_all(zip(places, values[count:], strict=True))

        names = (*self.names, *map(str, places))
        return LoopVariables(self._statement, get, put, names, {*self._places, *places}, looks)

    def is_known(self, place: Place) -> bool:
        """Returns whether an item or attribute is one of the loop variables."""
        return place in self._places

    def error(self, name: str, found: str) -> InvalidArgumentError:
        return type_mismatch_error(self._statement, name, found)


class _Attempt:
    """One trace of a loop body, for given initial values of the variables that the loop carries."""

    def __init__(self, variables: LoopVariables, start: tuple[Any, ...]) -> None:
        self._variables = variables
        self._start = start
        self.parts = Parts.of(start)
        self._after: tuple[Any, ...] = start
        self.changed: list[Place] = []

    def traced(self, body: Callable[..., None], test: Callable[[], Any] | None, rows: jax.Array | None) -> Loop:
        known = existing(body)  # without the loop variables' lists and dicts, which `filled` makes anew

        def step(tensors: Sequence[Any], *row: jax.Array) -> list[Any]:
            with recording(body) as changes:
                self._variables.set(self.parts.filled(tensors))
                with tracing(body, known):
                    body(*row)
                self._after = self._variables.get()
                results = self._results()
                self._variables.set(self._start)
                self._after = with_stand_ins(self._after)
                found = changes.found()
                Parts.of(tuple(found.values()))  # a TensorArray among them counts as used
                self.changed = [one for one in found if not self._variables.is_known(one)]
            return results

        def holds(tensors: Sequence[Any]) -> Any:
            assert test is not None
            with recording(body) as changes:  # the condition need not refer to what the body changes
                self._variables.set(self.parts.filled(tensors))
                result = as_tensor(test())
                self._variables.set(self._start)
                changes.found()
            return result

        row = None if rows is None else jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
        start = self.parts.tensors
        if not any(map(is_undefined, self._start)):
            return Loop.traced(start, step, None if test is None else holds, row)
        with inferring():
            return Loop.traced(start, step, None if test is None else holds, row)

    def _results(self) -> list[Any]:
        """Returns the tensors that the loop variables contain after one iteration of the traced body."""
        after = Parts.of(self._after)
        if after.treedef != self.parts.treedef:
            return self.parts.tensors  # ignored: `converted_start` compares the structures, and retries or raises
        return [as_tensor(after.leaves[i]) for i in self.parts.places]

    def converted_start(self) -> tuple[Any, ...] | None:
        """Returns initial loop values, converted to the types that the body produces; None if the types already agree.

        Raises:
            InvalidArgumentError: No initial values fit.
        """
        triples = zip(self._variables.names, self._start, self._after, strict=True)
        fitting = [self._fitting(name, before, after) for name, before, after in triples]
        return None if all(one is two for one, two in zip(fitting, self._start, strict=True)) else tuple(fitting)

    def _fitting(self, name: str, before: PyTree, after: PyTree) -> Any:
        if is_undefined(before):
            return before if is_undefined(after) else zeros_like(after)
        old, new = Parts.of(before), Parts.of(after)
        if old.treedef != new.treedef:
            grown = _grown(before, after)
            if grown is None:
                raise self._variables.error(name, f"changes its structure in the loop ({old.treedef} to {new.treedef})")
            return grown
        leaves = [self._leaf(name, one, two) for one, two in zip(old.leaves, new.leaves, strict=True)]
        same = all(one is two for one, two in zip(leaves, old.leaves, strict=True))
        return before if same else old.treedef.unflatten(leaves)

    def _leaf(self, name: str, before: Leaf, after: Leaf) -> Any:
        if is_same(before, after):
            return before
        tensors = Parts.of([before, after])
        if len(tensors.places) != 2:
            raise self._variables.error(name, f"is {before!r} before the loop and {type(after).__name__} in it")
        old, new = tensors.tensors
        if old.shape != new.shape:
            raise self._variables.error(name, f"has the shape {old.shape} before the loop and {new.shape} in it")
        if old.dtype == new.dtype:
            return before
        if is_number(before):
            return old.astype(common_dtype(before, new))
        raise self._variables.error(name, f"is {old.dtype} before the loop and {new.dtype} in it")


def _grown(before: PyTree, after: PyTree) -> Any:
    """Returns `before` with preallocated rows if it is a `tf.TensorArray`, as compiled loops require; else None."""
    grow = getattr(type(before), "__grown__", None)
    return None if grow is None or type(after) is not type(before) else grow(before, after)
