"""The functions that AutoGraph calls in place of `while` and `for` statements."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.source_lines import user_line
from mirrored._jax.traces import Tracer, is_eager
from mirrored._typing import Leaf, Operand, PyTree
from mirrored.errors import ArgumentTypeError
from mirrored.tf._autograph.branches import if_stmt
from mirrored.tf._autograph.changes import recording, write_all
from mirrored.tf._autograph.effects import existing, tracing
from mirrored.tf._autograph.nesting import nest
from mirrored.tf._autograph.places import Place
from mirrored.tf._autograph.ranges import TracedRange
from mirrored.tf._autograph.state import (
    GetState,
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
from mirrored.tf._autograph.truth import truth
from mirrored.tf._errors import InvalidArgumentError, UnimplementedError
from mirrored.tf._ops.loops import Loop, LoopMismatch, unroll
from mirrored.tf._ops.tensor_array import GrowingArrayError
from mirrored.tf._static import static_int
from mirrored.tf._tensors import as_tensor

_MOST_UNKNOWN = 300  # unrolled iterations of which only the program knows whether they run
_MOST_LOOKS = 6  # most traces of one loop body; each retries with the types that the last one inferred


def while_stmt(
    test: Callable[[], Any],
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    opts: dict[str, Any],
) -> None:
    """Executes a `while` statement of code that AutoGraph has converted; the condition may be a traced tensor.

    Args:
        test: The condition.
        body: Runs one iteration, which sets names of the surrounding function.
        get_state: Returns the values of the names that an iteration changes.
        set_state: Sets their values.
        symbol_names: The names.
        opts: Options of the loop: ``maximum_iterations``.
    """
    for count in itertools.count():
        condition = test()
        if isinstance(condition, jax.Array) and isinstance(condition, Tracer) and not is_eager():
            if condition.ndim:
                truth(condition)  # refuses several elements
            limit = _limit(opts.get("maximum_iterations"))
            limit = None if limit is None else max(limit - count, 0)  # `count` iterations have run in Python
            _while_in_program(condition, test, body, _LoopVariables("while", get_state, set_state, symbol_names), limit)
            return
        if not truth(condition):
            return
        body()


def _while_in_program(
    condition: Operand, test: Callable[[], Any], body: Callable[[], None], state: _LoopVariables, limit: int | None
) -> None:
    """Traces a `while` loop into the compiled program; `condition` is the loop condition before the first iteration."""
    try:
        state.loop(body, test, limit=limit, first=condition)
    except GrowingArrayError as error:
        conditions = itertools.chain([condition], (test() for _ in itertools.count()))
        unroll(lambda: truth(next(conditions)), body, limit, error)


def _limit(maximum_iterations: object) -> int | None:
    if maximum_iterations is None:
        return None
    return static_int(
        maximum_iterations, called="tf.autograph.experimental.set_loop_options", argument="maximum_iterations"
    )


def for_stmt(
    iter_: Iterable[Any],
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    opts: dict[str, Any],
) -> None:
    """Executes a `for` statement of code that AutoGraph has converted, over Python iterables, tensors or traced ranges.

    Args:
        iter_: The iterable.
        extra_test: Returns whether no `break` or `return` has been executed; None if the body has neither.
        body: Runs one iteration with one element.
        get_state: Returns the values of the names that an iteration changes.
        set_state: Sets their values.
        symbol_names: The names.
        opts: Options of the loop.

    Raises:
        UnimplementedError: There is a ``maximum_iterations`` for a loop inside the program.
    """
    state = _LoopVariables("for", get_state, set_state, symbol_names)
    if isinstance(iter_, TracedRange):
        _refuse_limit(opts)
        if not iter_.is_empty:  # else the trace of a body that never runs could raise an error
            _over_range(iter_, extra_test, body, state)
        return
    if hasattr(type(iter_), "__jax_array__"):
        iter_ = as_tensor(iter_)
    if isinstance(iter_, jax.Array) and not is_eager():
        _refuse_limit(opts)
        if iter_.ndim == 0:
            raise _scalar_loop_error(iter_)
        _over_rows(iter_, extra_test, body, state)
    else:
        _over_python(iter_, extra_test, body, state)


def _refuse_limit(opts: Mapping[str, Any]) -> None:
    if opts.get("maximum_iterations") is None:
        return
    raise UnimplementedError.of(
        "tf.autograph.experimental.set_loop_options",
        found=f"maximum_iterations={opts['maximum_iterations']!r} in a for loop over a tensor or a range",
        rule="maximum_iterations ends while loops; such a for loop has as many iterations as elements, also in "
        "TensorFlow, where the option has no effect",
        remedy="iterate over fewer elements: for row in tensor[:n], or tf.range(n)",
    )


def _over_python(
    iter_: Iterable[Any], extra_test: Callable[[], Any] | None, body: Callable[[Any], None], state: _LoopVariables
) -> None:
    going: Any = True if extra_test is None else extra_test()
    length = _length(iter_)
    unknown = 0
    for number, element in enumerate(iter_ if truth(going) is not False else ()):
        if truth(going) is None:  # whether the loop has ended is known only at run time
            unknown += 1
            if max(unknown, length - number) > _MOST_UNKNOWN:
                raise _too_long_error(length)
            run = functools.partial(body, element)
            if_stmt(going, run, _nothing, state.get, state.set, state.names, len(state.names))
        else:
            body(element)
        going = True if extra_test is None else extra_test()
        if truth(going) is False:
            return


def _length(values: Iterable[Any]) -> int:
    """Returns the number of elements of a sequence; 0 for other iterables, and if `len` overflows."""
    try:
        return len(values) if isinstance(values, Sequence) else 0
    except OverflowError:
        return 0


def _too_long_error(length: int) -> UnimplementedError:
    return UnimplementedError.of(
        "for",
        found=f"a tensor decides when a loop over {length or f'more than {_MOST_UNKNOWN}'} Python values ends, by a "
        "`break` or `return`",
        rule="a loop over Python values is unrolled, so the program would hold each iteration; at most "
        f"{_MOST_UNKNOWN} may follow after a tensor could have ended it",
        remedy="iterate over tf.range(n) or a tensor, or use `while`: their loops run inside the program",
    )


def _nothing() -> None:
    """Does nothing; replaces the loop body in iterations after a `break` or `return`."""


def _over_rows(
    rows: jax.Array, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], state: _LoopVariables
) -> None:
    before = state.get()
    if rows.shape[0] == 0:
        return
    try:
        state.loop(body, extra_test, rows=rows)
    except GrowingArrayError:
        state.set(before)
        _over_python([rows[i] for i in range(rows.shape[0])], extra_test, body, state)
    except InvalidArgumentError as error:
        # A variable whose shape changes between iterations cannot be carried by a compiled loop. The length of the
        # loop is known, so it is unrolled.
        state.set(before)
        try:
            _over_python([rows[i] for i in range(rows.shape[0])], extra_test, body, state)
        except Exception:
            raise error from None


def _scalar_loop_error(scalar: jax.Array) -> ArgumentTypeError:
    return ArgumentTypeError(
        "for in tf.function",
        found=f"the loop is over a scalar tensor of dtype {scalar.dtype}",
        rule="a loop over a tensor has one iteration per row: the tensor must have at least one dimension",
        remedy="loop over tf.range(n) for n iterations, or give the tensor a dimension: tf.reshape(x, [1])",
    )


def _over_range(
    values: TracedRange, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], state: _LoopVariables
) -> None:
    """Traces a `for` loop over a range with traced bounds, with the iteration number as an additional loop variable."""
    number: Any = jnp.zeros((), jnp.int32)

    def get() -> tuple[Any, ...]:
        return (*state.get(), number)

    def put(all_values: tuple[Any, ...]) -> None:
        nonlocal number
        state.set(all_values[:-1])
        number = all_values[-1]

    def once() -> None:
        nonlocal number
        body(values.at(number))
        number = number + 1

    def holds() -> Any:
        more = number < values.count
        return more if extra_test is None else jnp.logical_and(more, as_tensor(extra_test()))

    _LoopVariables("for", get, put, (*state.names, "the iteration number")).loop(once, holds)


class _LoopVariables:
    """The Python variables that a loop carries from one iteration to the next."""

    def __init__(
        self,
        statement: str,
        get_state: GetState,
        set_state: SetState,
        names: Sequence[str],
        places: AbstractSet[Place] = frozenset(),
        looks: int = 0,
    ) -> None:
        self._statement = statement
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
        expected = nest.expected(user_line(), self._places)
        if expected:
            self._with(expected, looks=self._looks).loop(body, test, rows=rows, limit=limit, first=first)
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
                    self._with(attempt.changed).loop(body, test, rows=rows, limit=limit, first=first)
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

    def _with(self, places: Sequence[Place], looks: int | None = None) -> _LoopVariables:
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
        return _LoopVariables(self._statement, get, put, names, {*self._places, *places}, looks)

    def is_known(self, place: Place) -> bool:
        """Returns whether an item or attribute is one of the loop variables."""
        return place in self._places

    def error(self, name: str, found: str) -> InvalidArgumentError:
        return type_mismatch_error(self._statement, name, found)


class _Attempt:
    """One trace of a loop body, for given initial values of the variables that the loop carries."""

    def __init__(self, variables: _LoopVariables, start: tuple[Any, ...]) -> None:
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
