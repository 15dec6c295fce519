"""Concrete arrays that replicas return: of each replica if it has made them, shared if they are from outside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from strategies.programs import parts

TABLE = np.arange(3.0, dtype=np.float32)


class Holder:
    def __init__(self, table):
        self.table = table

    def replica(self):
        return self.table


MADE = {
    "NumPy array": lambda: np.ones(2, np.float32),
    "NumPy scalar": lambda: np.float32(2.0),
    "float64 scalar of NumPy": lambda: np.float64("2.0"),
    "array of a Python number": lambda: jnp.asarray(len("ab" * 200)),
    "JAX array": lambda: jnp.ones(2),
    "converted array": lambda: jnp.asarray(TABLE),
    "copy of an outer array": lambda: TABLE * 1,
    "nested": lambda: {"a": (np.ones(2, np.float32),)},
}
GIVEN = {
    "global": lambda: TABLE,
    "closure": (lambda inner: lambda: inner)(np.ones(2, np.float32)),
    "JAX array in a closure": (lambda inner: lambda: inner)(jnp.ones(2)),
    "default": lambda x=TABLE: x,
    "of the instance": Holder(TABLE).replica,
    "of a called function": lambda: GIVEN["global"](),
    "argument in a structure": (lambda inner: lambda: inner["a"][0])({"a": [TABLE]}),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.first(34)
def test_arrays_that_replicas_make_are_per_replica(way, kind):
    results = jax.tree.leaves(
        way.compile(lambda: way.strategy.run(MADE[kind]))(), is_leaf=lambda x: isinstance(x, mr.PerReplica)
    )
    expected = jax.tree.leaves(MADE[kind]())[0]
    for result in results:
        assert parts(way.strategy, result) == [np.asarray(expected).tolist()] * way.num_replicas


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.first(34)
def test_arrays_that_replicas_make_are_summed(way, kind):
    def step():
        return way.strategy.reduce("SUM", way.strategy.run(MADE[kind]), axis=None)

    expected = jax.tree.map(lambda one: one * np.float32(way.num_replicas), MADE[kind]())
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(way.compile(step)()), expected)


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.first(39)
def test_arrays_from_outside_are_shared(way, kind):
    result = way.compile(lambda: way.strategy.run(GIVEN[kind]))()
    assert not isinstance(result, mr.PerReplica)
    np.testing.assert_array_equal(result, GIVEN[kind]())


def test_an_argument_that_is_returned_is_shared(way):
    result = way.compile(lambda: way.strategy.run(lambda x: x, args=(TABLE,)))()
    assert not isinstance(result, mr.PerReplica)
    np.testing.assert_array_equal(result, TABLE)


def test_arrays_that_replicas_make_are_merged_per_replica(way):
    def replica():
        return mr.get_replica_context().merge_call(
            lambda strategy, x: strategy.reduce("SUM", x, axis=None), args=(np.float32(2.0),)
        )

    result = way.compile(lambda: way.strategy.run(replica))()
    assert set(parts(way.strategy, result)) == {2.0 * way.num_replicas}


@pytest.mark.ways(modes=("compiled",))
@pytest.mark.parametrize(
    "constant", [lambda: float("1.5"), lambda: float("nan"), lambda: "a" * 300, lambda: bytes(300)]
)
def test_equal_python_constants_of_a_compiled_run_are_one_value(way, constant):
    result = way.compile(lambda: way.strategy.run(constant))()
    assert (type(result), repr(result)) == (type(constant()), repr(constant()))


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (complex(1.0, 0.0), complex(1.0, -0.0)), (1.0, 1)])
@pytest.mark.parametrize("compile", [lambda step: step, mr.function], ids=["eager", "compiled"])
def test_numbers_that_only_compare_as_equal_are_per_replica(compile, numbers):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)

    def step():
        calls = []

        def replica():
            calls.append(None)
            return numbers[len(calls) - 1]

        return strategy.run(replica)

    result = compile(step)()
    assert isinstance(result, mr.PerReplica)
    np.testing.assert_array_equal(np.signbit(np.real(jnp.asarray(result.values))), np.signbit(np.real(numbers)))
