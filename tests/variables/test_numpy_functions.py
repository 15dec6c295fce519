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


# What describes the array's memory and devices, or copies it: a variable has its own answers or none.
NOT_OF_VALUES = {
    *("addressable_data", "addressable_shards", "committed", "copy_to_host_async", "device", "global_shards"),
    *("is_fully_addressable", "is_fully_replicated", "sharding", "to_device"),
    *("byteswap", "copy", "flat", "itemsize", "nbytes", "view", "dtype", "ndim", "shape", "size"),
}


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
