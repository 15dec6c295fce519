"""Programs in 16-bit floats have the same bits on any number of devices, though XLA computes them in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

ROWS = np.random.default_rng(0).normal(size=(8, 16)).astype("f")
W = np.random.default_rng(1).normal(size=(16, 5)).astype("f")


def normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3)


FUNCTIONS: list[Callable[..., Any]] = [
    jax.nn.mish,
    jax.nn.gelu,
    jax.nn.silu,
    jax.nn.softmax,
    jax.nn.log_softmax,
    normalized,
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.long
def test_values_and_gradients(function: Callable[..., Any], dtype: str) -> None:
    found = []
    for devices in (1, 4):
        strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=4, deterministic=True)
        with strategy.scope():
            w = mr.Variable(W)

        def replica(x: Any, w: Any = w) -> Any:
            with mr.GradientTape() as tape:
                hidden = function(x.astype(dtype) @ w.astype(dtype))
                loss = (hidden * 0.3 + function(hidden)).astype("float32").sum()
            return loss, hidden.astype("float32"), tape.gradient(loss, w)

        def step(x: Any, strategy: Any = strategy, replica: Any = replica) -> Any:
            results = strategy.run(replica, args=(x,))
            return [jnp.stack(strategy.experimental_local_results(result)) for result in results]

        (x,) = strategy.experimental_distribute_dataset([ROWS])
        found.append([np.asarray(result) for result in mr.function(step)(x)])
    for results in found[1:]:
        for result, expected in zip(results, found[0], strict=True):
            np.testing.assert_array_equal(result, expected)
