"""Which results of a program depend on given inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mirrored._jax.inlining import program_of
from mirrored._jax.jaxprs import aval_of
from mirrored.analysis.dataflow import reached_results

X = jnp.arange(3.0)


def reached(function: Callable[..., Sequence[Any]], *inputs: int, count: int = 2) -> list[bool]:
    return reached_results(program_of(function, [aval_of(1.0)] * count).jaxpr, inputs)


def test_plain_operations_and_constants() -> None:
    program = program_of(lambda x, y: [x * y, x, X, jnp.sin(x) + X, 2.0], [aval_of(X), aval_of(2.0)])
    assert reached_results(program.jaxpr, [0]) == [True, True, False, True, False]
    assert reached_results(program.jaxpr, [1]) == [True, False, False, False, False]
    assert reached_results(program.jaxpr, [0, 1]) == [True, True, False, True, False]
    assert reached_results(program.jaxpr, []) == [False] * 5


PAIRS: dict[str, Callable[..., Any]] = {
    "call": lambda x, y: jax.jit(lambda a, b: (a + 1, b + 1))(x, y),
    "nested call": lambda x, y: jax.jit(lambda a, b: jax.jit(lambda b, a: (a * 2, b))(b, a))(x, y),
    "checkpoint": lambda x, y: jax.checkpoint(lambda a, b: (a + 1, b + 1))(x, y),
    "scan": lambda x, y: lax.scan(lambda c, _: ((c[0] + x, c[1] + y), None), (0.0, 0.0), length=2)[0],
    "stacked": lambda x, y: lax.scan(lambda c, _: (c, (c[0] + 1, c[1] + 1)), (x, y), length=2)[1],
    "fori": lambda x, y: lax.fori_loop(0, 3, lambda _, c: (c[0] * x, c[1] * y), (1.0, 1.0)),
    "while": lambda x, y: lax.while_loop(lambda c: c[2] < 3, lambda c: (c[0] * x, c[1] * y, c[2] + 1), (x, y, 0))[:2],
    "branch": lambda x, y: lax.cond(jnp.sum(X) > 1, lambda a, b: (a + 1, b), lambda a, b: (a, b + 1), x, y),
    "barrier": lambda x, y: lax.optimization_barrier((x, y)),
    "moved": lambda x, y: jax.device_put((x, y)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_results_of_one_equation_are_apart(pair: Callable[..., Any]) -> None:
    assert reached(pair, 0) == [True, False]
    assert reached(pair, 1) == [False, True]


def test_the_index_of_a_branch_and_the_condition_of_a_loop_reach_every_result() -> None:
    def branch(x: Any, y: Any) -> Any:
        return lax.cond(x > 0, lambda y: (y * 2, 1.0), lambda y: (y * 3, 2.0), y)

    def loop(x: Any, y: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, c[1] * 2), (0.0, y))

    assert [reached(branch, i) for i in (0, 1)] == [[True, True], [True, False]]
    assert [reached(loop, i) for i in (0, 1)] == [[True, True], [False, True]]


def test_values_move_through_the_carries_of_a_loop() -> None:
    def moved(x: Any, y: Any, z: Any) -> Any:
        return lax.fori_loop(0, 4, lambda _, c: (c[1], c[2], c[2]), (x, y, z))

    assert [reached(moved, i, count=3) for i in range(3)] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_what_is_stored_in_a_reference_reaches_later_reads() -> None:
    def stored(x: Any, y: Any) -> list[Any]:
        reference = jax.new_ref(jnp.zeros(()))
        before = reference[...]
        reference[...] = x
        return [before, reference[...], y]

    def stored_in_call(x: Any, y: Any) -> list[Any]:
        reference = jax.new_ref(jnp.zeros(()))

        @jax.jit
        def write(x: Any) -> None:
            reference[...] = x

        write(x)
        return [reference[...], y]

    assert reached(stored, 0) == [False, True, False]
    assert reached(stored_in_call, 0) == [True, False]


def test_a_host_callback_depends_on_its_operands() -> None:
    def called(x: Any, y: Any) -> list[Any]:
        return [jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), x), y]

    assert [reached(called, i) for i in (0, 1)] == [[True, False], [False, True]]
