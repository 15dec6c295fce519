"""Runs loops of `tf.while_loop` and AutoGraph in compiled code.

A loop is a scan, which has gradients, if the number of iterations or a limit is known, otherwise a while loop.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mirrored._jax.jaxprs import calls_host, dependencies, evaluate_outputs
from mirrored._jax.traces import NotConstant, evaluate
from mirrored._typing import Operand
from mirrored.tf._ops.blocks import Block, assigned_by, carried_over, commit, outer_values, trace_block

_MOST_COUNTED: Final = 10_000  # iterations counted on the host, about a second
MOST_SCANNED: Final = 10_000_000
"""The highest limit with which a loop is a scan, which has gradients, and runs as many steps as the limit says."""
MOST_UNROLLED: Final = 1_000
"""The most iterations of a `while` loop that is unrolled."""

Test = Callable[[Sequence[Any]], Any]
Body = Callable[..., Sequence[Any]]
Step = Callable[[list[Any], list[Any]], tuple[Sequence[Any], Sequence[Any]]]


@dataclasses.dataclass
class LoopMismatch(Exception):
    """Error for a loop body that returns a loop variable with another shape or dtype than it received.

    Attributes:
        place: Index of the loop variable.
        before: Its shape and dtype before the body.
        after: Its shape and dtype after the body.
    """

    place: int
    before: Any
    after: Any


@dataclasses.dataclass(frozen=True)
class Loop:
    """The traced body and condition of a loop, with the initial values of its loop variables.

    Attributes:
        start: The initial loop variables.
        body: Maps loop variables (and a row of `rows`) to new ones.
        test: Maps loop variables to whether to continue; None if `rows` alone ends the loop.
    """

    start: Sequence[Any]
    body: Block
    test: Block | None

    @classmethod
    def traced(
        cls, start: Sequence[Any], body: Body, test: Test | None, row: jax.ShapeDtypeStruct | None = None
    ) -> Loop:
        """Creates a `Loop` by tracing the body and the condition.

        Args:
            start: Arrays.
            body: Called with a list of arrays, and a row if `row` is given.
            test: Called with a list of arrays.
            row: The shape and dtype of the additional input of each iteration.

        Raises:
            LoopMismatch: The body changes the shape or dtype of a loop variable.
        """
        count = len(start)
        inputs = [*start] if row is None else [*start, row]
        traced = trace_block(lambda *all_: body(list(all_[:count]), *all_[count:]), inputs)
        for place, (before, after) in enumerate(zip(start, traced.result_types, strict=True)):
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                raise LoopMismatch(place, before, after)
        tested = None if test is None else trace_block(lambda *all_: [_scalar(test(list(all_)))], start)
        return cls(start, traced, tested)

    def run(
        self,
        *,
        count: int | None = None,
        limit: int | None = None,
        rows: jax.Array | None = None,
        first: Operand | None = None,
    ) -> list[Any]:
        """Runs the loop with `lax.scan` or `lax.while_loop`, and returns the final loop variables.

        Also assigns the `tf.Variable` objects that the body and the condition assign.

        Args:
            count: The number of iterations, if it is known; only the effects of the test then matter.
            limit: Maximum number of iterations; None for no limit. A scan, unless it is higher than `MOST_SCANNED`.
            rows: The inputs of the iterations, along axis 0.
            first: The condition of the first iteration, if the program has evaluated it already.

        Returns:
            The final loop variables.
        """
        carry = _Carry(self, first)
        if rows is not None:
            outs = self._scanned(carry, rows.shape[0], rows)
        elif count is not None:
            outs = self._scanned(carry, count, None, tested=False)
        elif (known := self.known_count(limit)) is not None:
            outs = self._scanned(carry, known, None, tested=False)
        elif limit is not None and limit <= MOST_SCANNED:
            outs = self._scanned(carry, limit, None)
        elif limit is not None:
            outs = _run_limited(carry, limit)
        else:
            outs = lax.while_loop(carry.holds, carry.step, carry.start)
        return carry.finish(outs)

    def _scanned(self, carry: _Carry, count: int, rows: jax.Array | None, *, tested: bool = True) -> Sequence[Any]:
        masked = tested and self.test is not None

        def once(values: Sequence[Any], row: jax.Array | None) -> tuple[Any, None]:
            if not masked:
                return carry.step(values, row), None
            return lax.cond(carry.holds(values), lambda: carry.step(values, row), lambda: list(values)), None

        outs: Sequence[Any]
        outs, _ = lax.scan(once, carry.start, rows, length=count)
        return outs

    def known_count(self, limit: int | None) -> int | None:
        """Returns the number of iterations; None if it depends on traced values or exceeds 10,000.

        Evaluates the condition on the host.
        """
        assert self.test is not None
        if self.test.assigned:  # skipping the test would skip its assignments
            return None
        test, body = self.test.staged.closed, self.body.staged.closed
        moved = dependencies(body)[: len(self.start)]
        deciding = sorted(_deciding(dependencies(test)[0], moved))
        count = 0
        try:
            known = {i: evaluate(self.start[i]) for i in deciding}
            while (limit is None or count < limit) and bool(evaluate_outputs(test, known, [0])[0]):
                known = dict(zip(deciding, evaluate_outputs(body, known, deciding), strict=True))
                count += 1
                if count > _MOST_COUNTED:
                    return None
        except NotConstant:
            return None
        return count


def _run_limited(carry: _Carry, limit: int) -> Sequence[Any]:
    """Runs a loop of at most `limit` iterations as `lax.while_loop`; `lax.scan` would always run `limit` iterations."""
    most = min(limit, np.iinfo(np.int32).max)

    def holds(state: tuple[Any, list[Any]]) -> Any:
        return (state[0] < most) & carry.holds(state[1])

    def step(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        return state[0] + 1, carry.step(state[1])

    outs: Sequence[Any]
    _, outs = lax.while_loop(holds, step, (jnp.zeros((), jnp.int32), carry.start))
    return outs


class _Carry:
    """The loop carry: the loop variables, and the values of `Variable` objects that the loop assigns.

    A condition that assigns variables, such as one that draws a random number, or that prints, checks or calls the
    host, is evaluated once before each iteration and after the last, like a part of the body. The carry then begins
    with its result.

    Args:
        loop: The loop.
        first: The condition of the first iteration, if it has been evaluated.
    """

    def __init__(self, loop: Loop, first: Operand | None) -> None:
        self._loop = loop
        self._blocks = [loop.body] if loop.test is None else [loop.body, loop.test]
        acts = loop.test is not None and (loop.test.assigned or calls_host(loop.test.staged.closed))
        self._test = loop.test if acts else None
        self._entries = outer_values(self._blocks)
        self._keys = assigned_by([loop.body] if self._test is None else self._blocks)
        self._count = len(loop.start)
        start = [jnp.asarray(one) for one in loop.start]
        start += [jnp.asarray(self._entries[key]) for key in self._keys]
        self.start = self._tested(start, first)

    def _at(self, values: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
        blocks = [self._loop.body] if self._test is None else self._blocks
        return list(values[: self._count]), carried_over(blocks, self._keys, values[self._count :], self._entries)

    def _tested(self, values: list[Any], known: Operand | None = None) -> list[Any]:
        """Evaluates a loop condition that is a part of the body; returns the carry with its result in front."""
        if self._test is None:
            return values
        if known is not None:
            return [_scalar(known), *values]
        state, entries = self._at(values)
        (holds, *_), assigned = self._test(state, entries)
        return [holds, *state, *self._updated(values, assigned)]

    def _updated(self, values: Sequence[Any], assigned: Mapping[Any, Any]) -> list[Any]:
        pairs = zip(self._keys, values[self._count :], strict=True)
        return [assigned.get(key, value) for key, value in pairs]

    def holds(self, values: Sequence[Any]) -> Any:
        if self._test is not None:
            return values[0]
        assert self._loop.test is not None
        state, entries = self._at(values)
        return self._loop.test(state, entries)[0][0]

    def step(self, values: Sequence[Any], row: jax.Array | None = None) -> list[Any]:
        values = values if self._test is None else values[1:]
        state, entries = self._at(values)
        results, assigned = self._loop.body(state if row is None else [*state, row], entries)
        return self._tested([*results, *self._updated(values, assigned)])

    def finish(self, outs: Sequence[Any]) -> list[Any]:
        outs = outs if self._test is None else outs[1:]
        commit(self._blocks, self._keys, outs[self._count :])
        return list(outs[: self._count])


def unroll(going: Callable[[], bool | None], step: Callable[[], None], limit: int | None, refused: Exception) -> None:
    """Traces every iteration of a loop separately; requires that the conditions are known while tracing.

    Args:
        going: Returns whether the loop continues; None if that is known only at run time.
        step: Traces one iteration.
        limit: Maximum number of iterations; None for no limit.
        refused: Raised if a condition is unknown, or holds after `MOST_UNROLLED` iterations.
    """
    for count in itertools.count():
        if count == limit:
            return
        holds = going()
        if holds is False:
            return
        if holds is None or count == MOST_UNROLLED:
            raise refused from None
        step()


def scan_rows(step: Step, start: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Runs a function over the rows of arrays with `lax.scan`, from first to last.

    Also assigns the `tf.Variable` objects that the function assigns; each row reads what the rows before it assigned.

    Args:
        step: Maps carried arrays and one row of each of `rows` to new carried arrays and results.
        start: The initial carried arrays.
        rows: Arrays of equal length along axis 0, at least one.

    Returns:
        The final carried arrays, and the results of all rows, stacked.
    """
    count = len(start)

    def flat(*arrays: Any) -> list[Any]:
        carry, results = step(list(arrays[:count]), list(arrays[count:]))
        return [*carry, *results]

    start = [jnp.asarray(one) for one in start]
    row_types = [jax.ShapeDtypeStruct(one.shape[1:], one.dtype) for one in rows]
    block = trace_block(flat, [*start, *row_types])
    entries, keys = outer_values([block]), assigned_by([block])

    def once(carry: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results, assigned = block([*carry[:count], *row], carried_over([block], keys, carry[count:], entries))
        return [*results[:count], *(assigned[key] for key in keys)], results[count:]

    outs, stacked = lax.scan(once, [*start, *(jnp.asarray(entries[key]) for key in keys)], list(rows))
    commit([block], keys, outs[count:])
    return outs[:count], stacked


def _scalar(value: Operand) -> jax.Array:
    return jnp.asarray(value).astype(bool).reshape(())


def _deciding(test: frozenset[int], body: Sequence[frozenset[int]]) -> frozenset[int]:
    """Returns the indices of the loop variables on which the condition depends, directly or through the body."""
    while True:
        more = test.union(*(body[i] for i in test))
        if more == test:
            return test
        test = more
