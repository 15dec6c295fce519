"""Probes of what `arrays` relies on in JAX: data of typed keys, equations behind tracers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.arrays import (
    NotConstant,
    evaluate,
    implementation_of,
    is_key,
    is_key_dtype,
    key_data,
)
from mirrored._jax.traces import CaptureTracer

# Typed keys


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_restored_from_their_data_and_the_name_in_their_dtype(implementation: str) -> None:
    keys = jax.random.split(jax.random.key(7, impl=implementation), 3)
    assert is_key(keys)
    assert is_key_dtype(keys.dtype)
    assert implementation_of(keys.dtype) == implementation
    data = key_data(keys)
    assert data.dtype == np.uint32
    again = jax.random.wrap_key_data(data, impl=implementation_of(keys.dtype))
    assert again.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.uniform(again[1]), jax.random.uniform(keys[1]))


def test_other_values_are_no_keys() -> None:
    array = jnp.ones(2, jnp.uint32)
    assert not is_key(array)
    assert not is_key(3)
    assert not is_key_dtype(array.dtype)
    assert key_data(array) is array


# Constants while tracing


def test_what_depends_on_constants_alone_is_known_while_tracing() -> None:
    found = []

    @jax.jit
    def traced(x):
        constant = jnp.arange(3) * 2 + np.array([1, 1, 1])
        found.append((type(constant), evaluate(jnp.where(constant > 2, constant, 0))))
        with pytest.raises(NotConstant):
            evaluate(constant + x)
        return constant

    assert traced(1).tolist() == [1, 3, 5]
    ((kind, value),) = found
    assert issubclass(kind, jax.core.Tracer)
    assert not isinstance(value, jax.core.Tracer)
    assert value.tolist() == [0, 3, 5]


def test_captured_values_are_known_to_who_knows_their_source() -> None:
    captured = CaptureTracer((2,), jnp.float32, "source")
    found = []

    def traced(x):
        doubled = captured * 2.0
        with pytest.raises(NotConstant):
            evaluate(doubled)
        found.append(evaluate(doubled, {"source": jnp.array([1.0, 4.0])}.__getitem__))
        return doubled + x

    jax.make_jaxpr(traced)(1.0)
    assert found[0].tolist() == [2.0, 8.0]


def test_the_index_of_a_replica_is_that_of_the_first() -> None:
    found = []

    def traced(x):
        index = jax.lax.axis_index("replica")
        with pytest.raises(NotConstant):
            evaluate(index)
        found.append(evaluate(index + 3, lambda source: source))
        return x + index

    jax.make_jaxpr(traced, axis_env=[("replica", 2)])(1.0)
    assert found == [3]


def test_values_that_are_no_tracers_are_themselves() -> None:
    array = jnp.ones(2)
    assert evaluate(array) is array
    assert evaluate("text") == "text"
