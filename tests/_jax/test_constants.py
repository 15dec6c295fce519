"""Arrays that are made without a compilation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mirrored._jax.arrays import copied, new_array
from mirrored._jax.constants import with_constants
from mirrored.testing import count_work

PARAMETERS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2, jnp.float16)}


@pytest.mark.parametrize("make", [optax.adam(0.1), optax.sgd(0.1, 0.9), optax.adagrad(0.1), optax.lookahead])
def test_the_result_is_that_of_the_call(make: Any):
    init = (
        make.init if isinstance(make, optax.GradientTransformation) else lambda tree: {"slow": tree, "n": 0 * tree["w"]}
    )
    expected, got = init(PARAMETERS), with_constants(init, PARAMETERS)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_constants_are_computed_on_the_host():
    jax.clear_caches()
    with count_work() as counted:
        state = with_constants(optax.adam(0.1).init, {"w": jax.ShapeDtypeStruct((7, 5), np.float32)})
    assert counted.compilations == 0
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(state))


def test_a_function_with_a_callback_is_called(capfd: Any):
    def init(tree: Any) -> Any:
        jax.debug.print("starts")
        return jax.tree.map(jnp.zeros_like, tree)

    assert not with_constants(init, PARAMETERS)["w"].any()
    jax.effects_barrier()
    assert "starts" in capfd.readouterr().out


def pointers(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("r")])
@pytest.mark.parametrize("is_key", [False, True])
def test_a_copy_has_new_buffers_on_the_same_devices(spec: PartitionSpec, is_key: bool):
    mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
    value = jax.random.split(jax.random.key(0), 4) if is_key else np.arange(4.0, dtype=np.float32)
    array = jax.device_put(value, NamedSharding(mesh, spec))
    copy = copied(array)
    assert copy.sharding.is_equivalent_to(array.sharding, 1)
    assert copy.dtype == array.dtype
    if is_key:
        array, copy = jax.random.key_data(array), jax.random.key_data(copy)
    assert np.array_equal(copy, array)
    assert not set(pointers(copy)) & set(pointers(array))


VALUES = [np.arange(3), np.float64(0.1), np.ones(2, bool), 3, 0.5, [1, 2], jnp.arange(3), np.ones(2, jnp.bfloat16)]


@pytest.mark.parametrize("dtype", [None, np.float32, np.float16, np.int32])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_new_array_is_that_of_jax(value: Any, dtype: Any):
    got, expected = new_array(value, dtype), jnp.array(value, dtype)
    assert got.dtype == expected.dtype
    assert got.weak_type == expected.weak_type
    assert got.committed == expected.committed
    assert np.array_equal(got, expected)


def test_a_new_array_does_not_change_with_its_source():
    source = np.zeros(1024, np.float32)
    array = new_array(source)
    source[:] = 1
    assert float(array.sum()) == 0
