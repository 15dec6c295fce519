"""Nested meshes in a compiled run are refused while it is traced, in every layout; XLA would abort the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import mirrored as mr
from mirrored.errors import DeviceError
from mirrored.topology.device_assignment import AXIS

P = PartitionSpec("i")


def mesh(name: str = "i", count: int = 2) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]), (name,))


def double(x: Any) -> Any:
    return x * 2


def mapped(x: Any) -> Any:
    return jax.pmap(double, devices=jax.devices()[:2])(x.reshape(2, -1))


def summed_by_pmap(x: Any) -> Any:
    function = jax.pmap(lambda a: jax.lax.psum(a, "i"), axis_name="i", devices=jax.devices()[:2])
    return function(x.reshape(2, -1))


def sharded(mesh: Mesh, x: Any) -> Any:
    spec = PartitionSpec(*mesh.axis_names)
    return jax.shard_map(double, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def resharded(x: Any) -> Any:
    explicit = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    return jax.sharding.reshard(x, NamedSharding(explicit, P)) * 2


NESTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pmap": (mapped, "jax.pmap"),
    "pmap with an axis name": (summed_by_pmap, "jax.pmap"),
    "pmap in a scan": (lambda x: jax.lax.scan(lambda c, a: (c, mapped(a)), 0.0, x.reshape(2, 4))[1], "jax.pmap"),
    "pmap in a gradient": (jax.grad(lambda x: jnp.sum(mapped(x) ** 2)), "jax.pmap"),
    "shard_map": (lambda x: sharded(mesh(), x), "jax.shard_map"),
    "shard_map over one device": (lambda x: sharded(mesh(count=1), x), "jax.shard_map"),
    "shard_map over the name of the run": (lambda x: sharded(mesh(AXIS), x), "jax.shard_map"),
    "with_sharding_constraint": (
        lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh(), P)) * 2,
        "with_sharding_constraint",
    ),
    "jit with in_shardings": (
        lambda x: jax.jit(double, in_shardings=NamedSharding(mesh(), P))(x),
        "jax.jit(in_shardings=",
    ),
    "jit with out_shardings": (
        lambda x: jax.jit(double, out_shardings=NamedSharding(mesh(), P))(x),
        "jax.jit(out_shardings=",
    ),
    "device_put": (lambda x: jax.device_put(x, NamedSharding(mesh(), P)) * 2, "jax.device_put"),
    "reshard": (resharded, "jax.sharding.reshard"),
    "nnx.pmap": (lambda x: nnx.pmap(double, devices=jax.devices()[:2])(x.reshape(2, -1)), "jax.pmap"),
    "nnx.shard_map": (
        lambda x: nnx.shard_map(double, mesh=mesh(), in_specs=P, out_specs=P)(x),
        "jax.shard_map",
    ),
}
LAYOUTS = [(2, 1), (2, 2), (4, 2), (3, 2)]  # with one replica, run calls the function in place


def strategy_of(replicas: int, devices: int) -> mr.MirroredStrategy:
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)


def inputs(strategy: mr.MirroredStrategy) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.arange(8.0) + context.replica_id_in_sync_group
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.first(28)
def test_nested_meshes_are_refused_in_every_layout(name: str, layout: tuple[int, int]) -> None:
    strategy = strategy_of(*layout)
    function, what = NESTED[name]
    with pytest.raises(DeviceError, match=r"a replica is one program on one device") as caught:
        mr.function(lambda x: strategy.run(function, args=(x,)))(inputs(strategy))
    assert what in str(caught.value)
    assert "jax.vmap in place of jax.pmap" in str(caught.value)


def test_the_error_names_the_line_of_a_nested_pmap() -> None:
    strategy = strategy_of(2, 2)
    with pytest.raises(DeviceError, match=r"at test_other_meshes\.py:\d+"):
        mr.function(lambda x: strategy.run(mapped, args=(x,)))(inputs(strategy))


def test_nested_meshes_are_refused_under_a_tape() -> None:
    strategy = strategy_of(2, 2)

    def gradient(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = jnp.sum(mapped(x))
        return tape.gradient(y, x)

    with pytest.raises(DeviceError, match="a replica is one program on one device"):
        mr.function(lambda x: strategy.run(gradient, args=(x,)))(inputs(strategy))


@pytest.mark.parametrize("name", ["pmap", "shard_map", "jit with in_shardings", "device_put"])
def test_eager_runs_and_cross_replica_code_use_other_meshes(name: str) -> None:
    strategy = strategy_of(2, 2)
    function, _ = NESTED[name]
    for i, value in enumerate(strategy.run(function, args=(inputs(strategy),)).values):
        np.testing.assert_array_equal(np.asarray(value).ravel(), 2 * (np.arange(8.0) + i))
    outside = mr.function(lambda x: function(x))(jnp.arange(8.0))
    np.testing.assert_array_equal(np.asarray(outside).ravel(), 2 * np.arange(8.0))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_placement_on_one_device_has_no_effect_in_a_run(layout: tuple[int, int]) -> None:
    strategy = strategy_of(*layout)
    step = mr.function(lambda x: strategy.run(lambda x: jax.device_put(x, jax.devices()[1]) * 2, args=(x,)))
    for i, value in enumerate(step(inputs(strategy)).values):
        np.testing.assert_array_equal(np.asarray(value), 2 * (np.arange(8.0) + i))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_closure_over_a_per_replica_value_is_no_other_mesh(layout: tuple[int, int]) -> None:
    strategy = strategy_of(*layout)
    x = inputs(strategy)

    def replica() -> Any:
        return mr.get_replica_context().merge_call(lambda strategy: x) * 2

    for _ in range(2):  # the second time, x is stacked
        for i, value in enumerate(mr.function(lambda: strategy.run(replica))().values):
            np.testing.assert_array_equal(np.asarray(value), 2 * (np.arange(8.0) + i))
