"""One rule for all values that reach a variable: they keep their kind of number, or are refused."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import VariableError

FLOATS = [2.7, 2.0, [2.7], (2, 2.7)[1:], np.float32(2.7), np.float64(2.7), np.array([2.7]), jnp.float32(2.7), 2 + 1j]


def _rows(values: Any) -> Any:
    return types.SimpleNamespace(indices=np.array([0]), values=values)


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_an_integer_variable_takes_no_floats(method: str, value: Any) -> None:
    variable = mr.Variable(jnp.zeros(np.shape(value), jnp.int32))
    with pytest.raises(VariableError, match="kind is kept"):
        getattr(variable, method)(value)
    assert not np.any(variable.numpy())


@pytest.mark.parametrize("method", ["scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_mul"])
@pytest.mark.parametrize("values", [[2.7], np.array([2.7], np.float32), jnp.array([2.7])], ids=repr)
def test_nor_as_rows(method: str, values: Any) -> None:
    variable = mr.Variable(jnp.ones(2, jnp.int32))
    with pytest.raises(VariableError, match="kind is kept"):
        getattr(variable, method)(_rows(values))
    assert variable.numpy().tolist() == [1, 1]


@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_nor_as_its_initial_value(value: Any) -> None:
    with pytest.raises(VariableError, match="kind is kept"):
        mr.Variable(value, dtype=jnp.int32)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_nor_inside_a_replica(synchronization: str, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        variable = mr.Variable(0, synchronization=synchronization, aggregation="SUM")

    def step() -> None:
        strategy.run(lambda: variable.assign_add(jnp.float32(2.7)))

    with pytest.raises(VariableError, match="kind is kept"):
        (mr.function(step) if compiled else step)()
    with pytest.raises(VariableError, match="kind is kept"):
        variable.assign(2.7)
    assert int(variable.numpy()) == 0


def test_numbers_of_the_same_kind_or_a_narrower_one_are_cast() -> None:
    whole, real, complex_ = mr.Variable(0), mr.Variable(0.0), mr.Variable(1j)
    assert int(whole.assign(np.int64(3))) == 3
    assert int(whole.assign_add(True)) == 4
    assert float(real.assign(3)) == 3.0
    assert float(real.assign(np.float64(2.5))) == 2.5
    assert complex(complex_.assign(2.5)) == 2.5
    with pytest.raises(VariableError, match="kind is kept"):
        real.assign(1j)
    with pytest.raises(VariableError, match="kind is kept"):
        mr.Variable(True).assign(1)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_typed_key_is_a_value_like_others(compiled: bool, devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices])
    with strategy.scope():
        state = mr.Variable(jax.random.key(0), trainable=False)

    def replica_step() -> Any:
        new, own = jax.random.split(state.read_value())
        state.assign(new)
        return jax.random.normal(own)

    def step() -> Any:
        return strategy.run(replica_step)

    drawn = (mr.function(step) if compiled else step)()
    new, own = jax.random.split(jax.random.key(0))
    assert jax.random.key_data(state.read_value()).tolist() == jax.random.key_data(new).tolist()
    for value in strategy.experimental_local_results(drawn):
        assert float(value) == pytest.approx(float(jax.random.normal(own)))
