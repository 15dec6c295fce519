"""Results that `out_specs` declares equal on all replicas: under tapes, and in traces of JAX's own transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import mirrored as mr
from mirrored.errors import TransformError

LAYOUTS = pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (1, 2), (2, 2), (2, 3), (4, 4)])
EQUAL, OWN = PartitionSpec(), PartitionSpec("replica")


@pytest.mark.first(3)
@LAYOUTS
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_tape_around_a_run_with_declared_results(
    devices: int, replicas: int, compiled: bool, deterministic: bool
) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    rows = jnp.arange(1.0, replicas + 1)
    with strategy.scope():
        v = mr.Variable(jnp.asarray([2.0, 3.0]))
    batch = strategy.experimental_distribute_values_from_function(lambda c: rows[c.replica_id_in_sync_group])

    def replica(x: Any) -> Any:
        y = jnp.sin(x * v)
        return y, mr.get_replica_context().all_reduce("SUM", jnp.sum(y))

    def loss() -> Any:
        own, total = strategy.run(replica, args=(batch,), out_specs=(OWN, EQUAL))
        return jnp.sum(strategy.reduce("SUM", own, axis=None)) * v[0] + total**2 + v[1] * total

    def plain(v: Any) -> Any:
        total = jnp.sum(jnp.sin(rows[:, None] * v))
        return total * v[0] + total**2 + v[1] * total

    def step() -> Any:
        with mr.GradientTape() as tape:
            value = loss()
        return value, tape.gradient(value, v)

    value, gradient = (mr.function(step) if compiled else step)()
    np.testing.assert_allclose(value, plain(v.read_value()), rtol=1e-5)
    np.testing.assert_allclose(gradient, jax.grad(plain)(v.read_value()), rtol=1e-4)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "vmap": lambda f: jax.vmap(lambda w: f(w)),
    "eval_shape": lambda f: lambda w: jax.eval_shape(f, w),
    "cond": lambda f: lambda w: jax.lax.cond(w[0] > 0, f, f, w),
    "scan": lambda f: lambda w: jax.lax.scan(lambda c, x: (c, f(x)), 0, w[None]),
    "grad": lambda f: jax.grad(lambda w: jnp.sum(f(w))),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("devices", [1, 2])
def test_an_eager_run_cannot_compare_declared_results_in_a_trace(name: str, devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2)

    def run(w: Any) -> Any:
        return strategy.run(
            lambda w: mr.get_replica_context().all_reduce("SUM", w * 2), args=(w,), out_specs=PartitionSpec()
        )

    with pytest.raises(TransformError, match="eager run"):
        TRANSFORMS[name](run)(jnp.ones(3))
    if name != "eval_shape":
        found = mr.function(lambda w: TRANSFORMS[name](run)(w))(jnp.ones(3))
        expected = TRANSFORMS[name](lambda w: 4 * w)(jnp.ones(3))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)
