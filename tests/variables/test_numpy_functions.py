"""NumPy's functions that call a method of their argument have the gradient of the variable, as of a tracked array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.patches import LISTED
from mirrored.values.operators import ArrayOperators

FUNCTIONS = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "clip": lambda x: np.clip(x, 0.5, 2.5),
    "round": lambda x: np.round(x) * x,
    "repeat": lambda x: np.repeat(x, 2),
    "swapaxes": lambda x: np.swapaxes(x, 0, 0),
    "real": np.real,
    "divmod": lambda x: divmod(x, 2.0)[1],
    "reflected divmod": lambda x: divmod(7.0, x)[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scoped", [True, False], ids=["mirrored", "plain"])
@pytest.mark.first(9)
def test_the_gradient_is_that_of_the_array(name, scoped):
    function = FUNCTIONS[name]
    value = jnp.asarray([0.75, 1.25, 2.75])
    if scoped:
        with mr.MirroredStrategy(jax.devices()[:2]).scope():
            variable = mr.Variable(value)
    else:
        variable = mr.Variable(value)
    with mr.GradientTape() as tape:
        tape.watch(value)
        of_variable = jnp.sum(jnp.asarray(function(variable)) ** 2)
    with mr.GradientTape() as other:
        other.watch(value)
        of_array = jnp.sum(jnp.asarray(function(value)) ** 2)
    np.testing.assert_array_equal(of_variable, of_array)
    np.testing.assert_array_equal(tape.gradient(of_variable, variable), other.gradient(of_array, value))


# What places one array, or is NumPy's own: a variable has its own answers or none.
NOT_OF_VALUES = {
    *("committed", "device", "global_shards", "sharding", "to_device"),
    *("byteswap", "flat", "dtype", "ndim", "shape", "size"),
}
# What programs call on the leaves of a model's state, as optax's `schedule_free` calls `copy`.
OF_LEAVES = {
    "copy": lambda leaf: leaf.copy(),
    "nbytes": lambda leaf: leaf.nbytes,
    "itemsize": lambda leaf: leaf.itemsize,
    "block_until_ready": lambda leaf: leaf.block_until_ready(),
    "devices": lambda leaf: len(leaf.devices()) > 0,
    "addressable_shards": lambda leaf: leaf.addressable_shards[0].data,
    "tobytes": lambda leaf: leaf.tobytes(),
}


@pytest.mark.parametrize("name", OF_LEAVES)
@pytest.mark.parametrize("scoped", [True, False], ids=["mirrored", "plain"])
def test_a_variable_answers_as_the_array_of_its_value(name, scoped):
    value = jnp.asarray([[0.75, 1.25, 2.75]])
    if scoped:
        with mr.MirroredStrategy(jax.devices()[:2]).scope():
            variable = mr.Variable(value)
    else:
        variable = mr.Variable(value)
    np.testing.assert_array_equal(OF_LEAVES[name](variable), OF_LEAVES[name](value))


def test_arrays_made_like_a_variable_are_not_committed_to_its_devices():
    """JAX's functions ask an operand for its `sharding`, and commit their results to it."""
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        variable = mr.Variable(jnp.ones(3))
    on_the_first = jax.device_put(jnp.ones(3), jax.devices()[0])
    for made in (jnp.zeros_like(variable), jnp.full_like(variable, 2.0), jnp.empty_like(variable) * 0):
        assert (made + on_the_first).devices() == {jax.devices()[0]}
    assert jax.jit(lambda x: x + 1)(variable).devices() == {jax.devices()[0]}


def test_a_copy_is_not_changed_by_a_step():
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        variable = mr.Variable(jnp.ones(3))
    kept = variable.copy()
    mr.function(lambda: variable.assign_add(jnp.ones(3)))()
    np.testing.assert_array_equal(kept, np.ones(3))
    np.testing.assert_array_equal(variable, 2 * np.ones(3))


def test_variables_have_every_method_of_arrays():
    """NumPy's functions call them; without one, NumPy converts the variable, and its gradient is None."""
    # Importing mirrored.tf adds TensorFlow's methods to jax.Array: those are not NumPy's.
    added = {name.removeprefix("Array.") for name in LISTED["jax"] if name.startswith("Array.")}
    methods = {name for name in dir(jax.Array) if not name.startswith("_")} - NOT_OF_VALUES - added
    assert {name for name in methods if not hasattr(ArrayOperators, name)} == set()


def test_a_function_that_jax_refuses_is_refused():
    for one in (jnp.arange(3.0), mr.Variable(jnp.arange(3.0))):
        with pytest.raises(NotImplementedError, match="mode"):
            np.take(one, np.array([2, 0]))
