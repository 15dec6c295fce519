"""The functions that AutoGraph calls in place of `while` and `for` statements."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.traces import Tracer, is_eager
from mirrored._typing import Operand
from mirrored.errors import ArgumentTypeError
from mirrored.tf._autograph import effects
from mirrored.tf._autograph.branches import if_stmt
from mirrored.tf._autograph.closures import isolated
from mirrored.tf._autograph.loop_state import LoopVariables
from mirrored.tf._autograph.ranges import TracedRange
from mirrored.tf._autograph.state import (
    GetState,
    SetState,
)
from mirrored.tf._autograph.truth import truth
from mirrored.tf._errors import InvalidArgumentError, UnimplementedError
from mirrored.tf._ops.loops import unroll
from mirrored.tf._ops.tensor_array import GrowingArrayError
from mirrored.tf._static import static_int
from mirrored.tf._tensors import as_tensor

_MOST_UNKNOWN = 300  # unrolled iterations of which only the program knows whether they run


def while_stmt(
    test: Callable[[], Any],
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    opts: dict[str, Any],
    rescued: Sequence[str] = (),
    own: Sequence[str] = (),
) -> None:
    """Executes a `while` statement of code that AutoGraph has converted; the condition may be a traced tensor.

    Args:
        test: The condition.
        body: Runs one iteration, which sets names of the surrounding function.
        get_state: Returns the values of the names that an iteration changes.
        set_state: Sets their values.
        symbol_names: The names.
        opts: Options of the loop: ``maximum_iterations``.
        rescued: The names that are read only after an exception or by a closure. They need not have a value that fits.
        own: Other names that an iteration changes, and that only closures in the body read.
    """
    for count in itertools.count():
        condition = test()
        if isinstance(condition, jax.Array) and isinstance(condition, Tracer) and not is_eager():
            if condition.ndim:
                truth(condition)  # refuses several elements
            limit = _limit(opts.get("maximum_iterations"))
            limit = None if limit is None else max(limit - count, 0)  # `count` iterations have run in Python
            state = LoopVariables("while", get_state, set_state, symbol_names, rescued=rescued)
            _while_in_program(condition, test, body, state, limit, own)
            return
        if not truth(condition):
            return
        body()


def _while_in_program(
    condition: Operand,
    test: Callable[[], Any],
    body: Callable[[], None],
    state: LoopVariables,
    limit: int | None,
    own: Sequence[str],
) -> None:
    """Traces a `while` loop into the compiled program; `condition` is the loop condition before the first iteration."""
    try:
        state.loop(isolated(body, own), test, limit=limit, first=condition)
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
    rescued: Sequence[str] = (),
    own: Sequence[str] = (),
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
        rescued: The names that are read only after an exception or by a closure. They need not have a value that fits.
        own: Other names that an iteration changes, and that only closures in the body read.

    Raises:
        UnimplementedError: There is a ``maximum_iterations`` for a loop inside the program.
    """
    state = LoopVariables("for", get_state, set_state, symbol_names, rescued=rescued)
    if isinstance(iter_, TracedRange):
        _refuse_limit(opts)
        if not iter_.is_empty:  # else the trace of a body that never runs could raise an error
            _over_range(iter_, extra_test, isolated(body, own), state)
        return
    if hasattr(type(iter_), "__jax_array__"):
        iter_ = as_tensor(iter_)
    if isinstance(iter_, jax.Array) and not is_eager():
        _refuse_limit(opts)
        if iter_.ndim == 0:
            raise _scalar_loop_error(iter_)
        _over_rows(iter_, extra_test, body, state, own)
    else:
        effects.reading([iter_], "for")
        _over_python(iter_, extra_test, body, state, own)


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
    iter_: Iterable[Any],
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    state: LoopVariables,
    own: Sequence[str] = (),
) -> None:
    going: Any = True if extra_test is None else extra_test()
    length = _length(iter_)
    unknown = 0
    for number, element in enumerate(iter_ if truth(going) is not False else ()):
        if truth(going) is None:  # whether the loop has ended is known only at run time
            unknown += 1
            if max(unknown, length - number) > _MOST_UNKNOWN:
                raise _too_long_error(length)
            run = functools.partial(isolated(body, own), element)
            if_stmt(going, run, _nothing, state.get, state.set, state.names, len(state.names), state.rescued)
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
    rows: jax.Array,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    state: LoopVariables,
    own: Sequence[str],
) -> None:
    before = state.get()
    if rows.shape[0] == 0:
        return
    try:
        state.loop(isolated(body, own), extra_test, rows=rows)
    except GrowingArrayError:
        state.set(before)
        _over_python([rows[i] for i in range(rows.shape[0])], extra_test, body, state, own)
    except InvalidArgumentError as error:
        # A variable whose shape changes between iterations cannot be carried by a compiled loop. The length of the
        # loop is known, so it is unrolled.
        state.set(before)
        try:
            _over_python([rows[i] for i in range(rows.shape[0])], extra_test, body, state, own)
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
    values: TracedRange, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], state: LoopVariables
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

    names = (*state.names, "the iteration number")
    LoopVariables("for", get, put, names, rescued=state.rescued).loop(once, holds)
