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
from mirrored.testing import Way

FLOATS = [2.7, 2.0, [2.7], (2, 2.7)[1:], np.float32(2.7), np.float64(2.7), np.array([2.7]), jnp.float32(2.7), 2 + 1j]


def _rows(values: Any) -> Any:
    return types.SimpleNamespace(indices=np.array([0]), values=values)


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_an_integer_variable_takes_no_floats(method: str, value: Any) -> None:
    variable = mr.Variable(jnp.zeros(np.shape(value), jnp.int32))
    with pytest.raises(VariableError, match="its own kind of dtype"):
        getattr(variable, method)(value)
    assert not np.any(variable.numpy())


@pytest.mark.parametrize("method", ["scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_mul"])
@pytest.mark.parametrize("values", [[2.7], np.array([2.7], np.float32), jnp.array([2.7])], ids=repr)
def test_nor_as_rows(method: str, values: Any) -> None:
    variable = mr.Variable(jnp.ones(2, jnp.int32))
    with pytest.raises(VariableError, match="its own kind of dtype"):
        getattr(variable, method)(_rows(values))
    assert variable.numpy().tolist() == [1, 1]


@pytest.mark.parametrize("value", FLOATS, ids=repr)
def test_nor_as_its_initial_value(value: Any) -> None:
    with pytest.raises(VariableError, match="its own kind of dtype"):
        mr.Variable(value, dtype=jnp.int32)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_nor_inside_a_replica(synchronization: str, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        variable = mr.Variable(0, synchronization=synchronization, aggregation="SUM")

    def step() -> None:
        strategy.run(lambda: variable.assign_add(jnp.float32(2.7)))

    with pytest.raises(VariableError, match="its own kind of dtype"):
        (mr.function(step) if compiled else step)()
    with pytest.raises(VariableError, match="its own kind of dtype"):
        variable.assign(2.7)
    assert int(variable.numpy()) == 0


def test_numbers_of_the_same_kind_or_a_narrower_one_are_cast() -> None:
    whole, real, complex_ = mr.Variable(0), mr.Variable(0.0), mr.Variable(1j)
    assert int(whole.assign(np.int64(3))) == 3
    assert int(whole.assign_add(True)) == 4
    assert float(real.assign(3)) == 3.0
    assert float(real.assign(np.float64(2.5))) == 2.5
    assert complex(complex_.assign(2.5)) == 2.5
    with pytest.raises(VariableError, match="its own kind of dtype"):
        real.assign(1j)
    with pytest.raises(VariableError, match="its own kind of dtype"):
        mr.Variable(True).assign(1)


OUTSIDE = [
    (np.uint8, np.array([3, 300], np.int32), 300),
    (np.uint8, np.array([3, -5], np.int64), -5),
    (np.uint8, [300, -5], 300),
    (np.uint8, [3, np.int32(-5)], -5),
    (np.uint8, np.array([3, -5], np.int8), -5),
    (np.int8, np.array([3, 200], np.uint8), 200),
    (np.int32, np.array([3, 2**31], np.uint32), 2**31),
    (np.int32, np.array([-(2**40), 3]), -(2**40)),
    (np.int32, (3, 2**70), 2**70),
    (np.int8, 128, 128),
    (np.uint32, np.int64(-1), -1),
]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize(("dtype", "value", "found"), OUTSIDE, ids=repr)
@pytest.mark.first(33)
def test_an_integer_on_the_host_must_be_in_range(
    dtype: Any, value: Any, found: int, method: str, compiled: bool
) -> None:
    variable = mr.Variable(np.zeros(np.shape(value), dtype), name="v")

    def step() -> None:
        getattr(variable, method)(value)

    with pytest.raises(VariableError, match=rf"the value {found} for variable 'v' of dtype {np.dtype(dtype)}"):
        (mr.function(step) if compiled else step)()
    assert not np.any(variable.numpy())


@pytest.mark.parametrize(("dtype", "value", "found"), OUTSIDE, ids=repr)
def test_so_must_an_initial_value(dtype: Any, value: Any, found: int) -> None:
    with pytest.raises(VariableError, match=f"the value {found} for variable"):
        mr.Variable(value, dtype=dtype)


@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_so_must_the_values_of_a_strategy(synchronization: str) -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        variable = mr.Variable(np.zeros(2, np.uint8), synchronization=synchronization, aggregation="SUM")
    with pytest.raises(VariableError, match="the value 300 for variable"):
        variable.assign(np.array([3, 300], np.int32))
    variable.assign(np.array([3, 255], np.int32))
    assert variable.numpy().tolist() == [3, 255]


def test_integers_at_the_limits_are_in_range_and_device_arrays_wrap_around() -> None:
    variable = mr.Variable(np.zeros(2, np.uint8))
    for value in (np.array([0, 255], np.int64), [0, 255], (np.int32(0), True + 254)):
        assert variable.assign(value).tolist() == [0, 255]
    assert mr.Variable(np.zeros(0, np.uint8)).assign(np.zeros(0, np.int64)).tolist() == []
    assert variable.assign(jnp.array([300, -5])).tolist() == [44, 251]
    assert mr.function(lambda x: variable.assign(x))(np.array([300, -5], np.int32)).tolist() == [44, 251]


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


@pytest.mark.ways(modes=("eager", "compiled", "folded"), replicas=(2,))
@pytest.mark.parametrize("number", [np.mean(np.full(3, 2.0)), np.float32(2.0), np.int64(2)], ids=type)
def test_numbers_of_numpy_are_summed_as_arrays_are(way: Way, number: Any) -> None:
    """A `numpy.float64`, as `numpy.mean` returns it, is also a Python float, which is one value for all replicas."""
    with way.strategy.scope():
        total = mr.Variable(1.0, aggregation="SUM")
    step = way.compile(lambda: way.strategy.run(lambda: total.assign_add(number)))
    step()
    assert float(total.numpy()) == 5.0
