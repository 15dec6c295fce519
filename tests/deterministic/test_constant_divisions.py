"""Divisions of arrays over which a function closes have equal bits in every layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

REPLICAS = 6
_random = np.random.default_rng(0)
ROWS = _random.normal(size=(2 * REPLICAS, 5)).astype(np.float32)
CLOSED_OVER = jnp.asarray(_random.normal(size=5).astype(np.float32))
WEIGHT = jnp.asarray(_random.normal(size=5).astype(np.float32))


def quotient(x, w):
    return CLOSED_OVER / 6 + 0 * x + 0 * w


def product(x, w):
    return ((CLOSED_OVER * 2 + 1) / 3 * jnp.cos(x * w)).sum(0)


def nested(x, w):
    return jax.jit(lambda one: one / 7 * x)(CLOSED_OVER) + 0 * w


def looped(x, w):
    return jax.lax.scan(lambda carry, row: (carry + CLOSED_OVER / 6 * row, None), w, x)[0]


def gradient(x, w):
    with mr.GradientTape() as tape:
        tape.watch(w)
        y = jnp.sin(x * w).mean(0)
    return tape.gradient(y, w, output_gradients=CLOSED_OVER / 6)


def results(devices, function, reduces):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, deterministic=True)
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: ROWS[2 * context.replica_id_in_sync_group :][:2]
    )

    @mr.function
    def step(w):
        result = strategy.run(function, args=(batch, w))
        return strategy.reduce("MEAN", result, axis=None) if reduces else result

    return [np.asarray(one) for one in strategy.experimental_local_results(step(WEIGHT))]


@pytest.mark.first(4)
@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("function", [quotient, product, nested, looped, gradient])
def test_bits_do_not_depend_on_the_devices(function, reduces):
    expected = results(1, function, reduces)
    for devices in (2, 3, 4):
        for one, other in zip(expected, results(devices, function, reduces), strict=True):
            assert one.tobytes() == other.tobytes()
