"""The marker of values that are equal by construction: an identity to everything but the proof."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.jaxprs import equal_on_all_devices
from mirrored.analysis.replication_check import Origin, check_replication
from mirrored.topology.device_assignment import AXIS


def test_it_computes_nothing() -> None:
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(equal_on_all_devices(x, AXIS), x)
    np.testing.assert_array_equal(jax.jit(lambda x: equal_on_all_devices(x, AXIS) * 2)(x), x * 2)


def test_it_is_linear_and_batches() -> None:
    def square(x: jax.Array) -> jax.Array:
        return jnp.sum(equal_on_all_devices(x, AXIS) ** 2)

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(square)(x), 2 * x)
    np.testing.assert_array_equal(jax.jvp(square, (x,), (jnp.ones(3),))[1], 6.0)
    np.testing.assert_array_equal(jax.vmap(jax.grad(square))(jnp.stack([x, x])), jnp.stack([2 * x, 2 * x]))


def test_the_proof_believes_it_for_its_axis_only() -> None:
    for axis, varies in ((AXIS, False), ("model", True)):
        closed = jax.make_jaxpr(lambda x, axis=axis: equal_on_all_devices(x, axis))(1.0)
        assert check_replication(closed, [Origin("x", True)]).varies(closed.jaxpr.outvars[0]) is varies
