"""Random numbers have the same bits on any number of devices, whichever generator makes their bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

REPLICAS = 4
DRAWS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "exponential": (jax.random.exponential, (8, 8)),
    "laplace": (jax.random.laplace, (8, 8)),
    "gumbel": (jax.random.gumbel, (64, 64)),
    "normal": (jax.random.normal, (4, 4)),
    "truncated_normal": (lambda key, shape: jax.random.truncated_normal(key, -2.0, 2.0, shape), (8, 8)),
    "logistic": (jax.random.logistic, (8, 8)),
    "gamma": (lambda key, shape: jax.random.gamma(key, 2.0, shape), (16,)),
    "tanh_of_uniform": (lambda key, shape: jnp.tanh(3.0 * jax.random.uniform(key, shape) - 1.0), (8, 8)),
}


def drawn(devices: int, impl: str, draw: str, own_key: bool) -> Any:
    strategy = mr.MirroredStrategy(
        [f"CPU:{index}" for index in range(devices)], num_replicas=REPLICAS, deterministic=True
    )
    function, shape = DRAWS[draw]

    def replica(scale: Any) -> Any:
        key = jax.random.key(1, impl=impl)
        if own_key:
            key = jax.random.fold_in(key, mr.get_replica_context().replica_id_in_sync_group)
        return function(key, shape) * scale

    results = mr.function(lambda: strategy.run(replica, args=(jnp.float32(1.5),)))()
    return np.stack([np.asarray(one) for one in strategy.experimental_local_results(results)])


@pytest.mark.parametrize("own_key", [True, False], ids=["own key", "one key"])
@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg", "threefry2x32"])
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.first(2)
def test_draws_have_the_same_bits_on_any_number_of_devices(draw: str, impl: str, own_key: bool) -> None:
    on_one = drawn(1, impl, draw, own_key)
    for devices in (2, 4):
        np.testing.assert_array_equal(drawn(devices, impl, draw, own_key), on_one)
