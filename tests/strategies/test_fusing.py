"""Loops and branches with collectives that the replicas of one device build differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import MergeError


def total(x: Any) -> Any:
    return mr.get_replica_context().all_reduce("SUM", x)


def results_of(program: Callable[[int, Any], Any]) -> list[float]:
    """Runs `program` with the index of the replica as a Python number, as a closure over a counter would have it."""
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2)
    traced: list[None] = []

    def replica(x: Any) -> Any:
        traced.append(None)
        return program((len(traced) - 1) % 2, x)

    result = mr.function(lambda x: strategy.run(replica, args=(x,)))(jnp.float32(1.0))
    return [float(one) for one in strategy.experimental_local_results(result)]


def own_constants(replica: int, x: Any) -> Any:
    y = x * 2.0
    if replica:
        return lax.scan(lambda c, e: (total(c) + y * e, None), x, jnp.arange(3.0))[0]
    return lax.scan(lambda c, e: (total(c) + e, None), x, jnp.arange(3.0))[0]


def own_constants_for_carries(replica: int, x: Any) -> Any:
    y = x * 2.0
    if replica:
        return lax.scan(lambda c, e: (total(c) + y * e, None), x, jnp.arange(3.0))[0]
    return lax.scan(lambda c, e: ((total(c[0]) + e, c[1]), None), (x, y), jnp.arange(3.0))[0][0]


def own_carries(replica: int, x: Any) -> Any:
    if replica:
        return lax.scan(lambda c, e: (total(c) + 2.0 * e, c), x, jnp.arange(3.0))[0]
    return lax.scan(lambda c, e: ((total(c[0]) + e, c[1]), None), (x, x), jnp.arange(3.0))[0][0]


@pytest.mark.parametrize("program", [own_constants, own_constants_for_carries, own_carries])
def test_scans_may_carry_and_close_over_different_numbers_of_arrays(program: Any) -> None:
    assert results_of(program) == [13.0, 15.0]


@pytest.mark.parametrize("carries", [False, True], ids=["constants", "carries"])
def test_while_loops_may_close_over_different_numbers_of_arrays(carries: bool) -> None:
    def program(replica: int, x: Any) -> Any:
        y = x * 2.0
        if replica:
            return lax.while_loop(lambda c: c[1] < 3, lambda c: (total(c[0]) + y, c[1] + 1), (x, 0))[0]
        more = (y,) if carries else ()
        return lax.while_loop(lambda c: c[1] < 3, lambda c: (total(c[0]) + 1.0, c[1] + 1, *c[2:]), (x, 0, *more))[0]

    assert results_of(program) == [18.0, 19.0]


def test_branches_may_close_over_and_return_different_numbers_of_arrays() -> None:
    def program(replica: int, x: Any) -> Any:
        y = x * 2.0
        chosen = (lambda x: (total(x) + y, x)) if replica else (lambda x: (total(x),))
        return lax.cond(total(x) > 0.0, chosen, chosen, x)[0]

    assert results_of(program) == [2.0, 4.0]


def _none_for_one(k: int, x: Any) -> Any:
    """Replica 0 has the first of two values, replica 1 the second one."""

    def body(c: Any, e: Any) -> tuple[Any, None]:
        first, second = total([None, e * 10.0] if k else [e, None])
        return c + (second if first is None else first), None

    return lax.scan(body, x, jnp.ones(2))[0]


def _derivative_of_one(k: int, x: Any) -> Any:
    """Replica 0 differentiates by the first of two values, replica 1 by the second one."""

    def loss(y: Any) -> Any:
        first, second = total([x, y] if k else [y, x])
        return first * 2.0 + second * 3.0

    return lax.scan(lambda c, e: (c + jax.grad(loss)(e), None), x, jnp.ones(2))[0]


@pytest.mark.parametrize("program", [_none_for_one, _derivative_of_one])
def test_different_values_of_the_replicas_are_not_summed(program: Any) -> None:
    with pytest.raises(MergeError, match="a value must be None on all replicas or on none"):
        results_of(program)


DIFFERENT = {
    "length": lambda k, x: lax.scan(lambda c, _: (c + total(c), None), x, None, length=2 + k)[0],
    "length of arrays": lambda k, x: lax.scan(lambda c, e: (c + total(e), None), x, jnp.ones(2 + k))[0],
    "direction": lambda k, x: lax.scan(lambda c, e: (c * 2 + total(e), c), x, jnp.arange(3.0), reverse=bool(k))[0],
    "number of branches": lambda k, x: lax.switch(total(jnp.int32(0)), [total, *[lambda x: x] * (1 + k)], x),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_loops_and_branches_that_cannot_be_one_are_refused(kind: str) -> None:
    """Of a `scan` without arrays, the first replica's length and direction were used for all, silently."""
    with pytest.raises(MergeError, match="replicas of a device (scan|choose)"):
        results_of(DIFFERENT[kind])


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_function_with_a_collective_and_no_results_is_executed_once_per_replica(replicas):
    """Its equations were evaluated once per replica and replica."""
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=replicas)
    seen: list[float] = []

    def replica(x: Any) -> None:
        jax.jit(lambda x: jax.debug.callback(lambda value: seen.append(float(value)), total(x)))(x)

    mr.function(lambda x: strategy.run(replica, args=(x,)))(jnp.float32(1.0))
    jax.effects_barrier()
    assert seen == [float(replicas)] * replicas
