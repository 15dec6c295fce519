"""A variable can be read under a JAX transform in a program, and not in the eager call of an uneven batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import TransformError


@pytest.mark.parametrize("uneven_first", [False, True])
@pytest.mark.parametrize("transform", ["vmap", "cond", "scan"])
def test_the_error_names_the_uneven_batch(transform: str, uneven_first: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = mr.Variable(jnp.ones(3), name="w")
    functions: dict[str, Any] = {
        "vmap": lambda x: jax.vmap(lambda row: row @ w.read_value())(x).sum(),
        "cond": lambda x: jax.lax.cond(x.sum() > 0, lambda: w.read_value(), lambda: jnp.zeros(3)).sum(),
        "scan": lambda x: jax.lax.scan(lambda c, row: (c + w.read_value(), row), jnp.zeros(3), x)[0].sum(),
    }

    @mr.function
    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(functions[transform], args=(x,)), axis=None)

    dataset = strategy.experimental_distribute_dataset([np.ones((4, 3), np.float32), np.ones((3, 3), np.float32)])
    even, uneven = dataset
    if not uneven_first:
        step(even)
    with pytest.raises(
        TransformError, match="this call of step is eager, because its per-replica batches differ"
    ) as raised:
        step(uneven)
    assert "last_batch='pad'" in raised.value.remedy
    assert np.isfinite(step(even))


def test_other_errors_keep_their_remedy() -> None:
    """No program can assign a variable in a loop of JAX, so even batches would not help."""
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = mr.Variable(0.0, trainable=False)

    @mr.function
    def step(x: Any) -> Any:
        return strategy.run(
            lambda x: jax.lax.scan(lambda c, row: (w.assign_add(1.0), row), jnp.zeros(()), x)[0], args=(x,)
        )

    [uneven] = strategy.experimental_distribute_dataset([np.ones((3, 3), np.float32)])
    with pytest.raises(TransformError, match="was assigned under a JAX transform") as raised:
        step(uneven)
    assert "last_batch" not in str(raised.value)
