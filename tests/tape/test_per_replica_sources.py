"""Gradients with respect to per-replica values, in whichever form their components are stored when a tape watches them.

The components are separate arrays, or rows of one sharded array, which a compiled function caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

layouts = pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (1, 2), (2, 2)])

EARLIER_USES: dict[str, Callable[..., Any]] = {
    "none": lambda loss, strategy, x: None,
    "compiled": lambda loss, strategy, x: mr.function(loss)(x),
    "values": lambda loss, strategy, x: x.values,
    "repr": lambda loss, strategy, x: repr(x),
    "run": lambda loss, strategy, x: strategy.run(jnp.sum, args=(x,)),
    "reduce": lambda loss, strategy, x: strategy.reduce("SUM", x, axis=None),
}


def made(devices: int, replicas: int) -> tuple[mr.MirroredStrategy, Callable[..., Any]]:
    """Returns a strategy, and the sum over replicas of a function of one per-replica value."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)

    def loss(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda own: (own**2).sum(), args=(x,)), axis=None)

    return strategy, loss


def value(strategy: mr.MirroredStrategy, stored: str) -> Any:
    rows = np.arange(2.0 * strategy.num_replicas_in_sync, dtype="f")
    if stored == "rows" and strategy.num_replicas_in_sync > 1:  # a batch for one replica is a plain array
        return next(iter(strategy.experimental_distribute_dataset([rows])))
    made = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(np.split(rows, context.num_replicas_in_sync)[context.replica_id_in_sync_group])
    )
    if stored == "rows":
        made.stacked(strategy.device_assignment)
    return made


@layouts
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("stored", ["rows", "components"])
@pytest.mark.parametrize("use", EARLIER_USES.values(), ids=EARLIER_USES.keys())
def test_the_gradient_of_a_watched_value(devices: int, replicas: int, compiled: bool, stored: str, use: Any) -> None:
    strategy, loss = made(devices, replicas)
    x = value(strategy, stored)
    use(loss, strategy, x)
    with mr.GradientTape() as tape:
        tape.watch(x)
        total = (mr.function(loss) if compiled else loss)(x)
    gradient = np.concatenate(strategy.experimental_local_results(tape.gradient(total, x)))
    np.testing.assert_array_equal(gradient, 2 * np.arange(2.0 * replicas))


@layouts
def test_all_uses_in_one_block_are_summed(devices: int, replicas: int) -> None:
    strategy, loss = made(devices, replicas)
    x = value(strategy, "components")
    with mr.GradientTape() as tape:
        tape.watch(x)
        reduced = strategy.reduce("SUM", x, axis=None).sum()
        total = mr.function(loss)(x) + loss(x) + reduced + mr.function(loss)(x)
    gradient = np.concatenate(strategy.experimental_local_results(tape.gradient(total, x)))
    np.testing.assert_array_equal(gradient, 6 * np.arange(2.0 * replicas) + 1)


@layouts
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("stored", ["rows", "components"])
def test_a_value_that_is_not_watched_has_no_gradient(devices: int, replicas: int, compiled: bool, stored: str) -> None:
    strategy, loss = made(devices, replicas)
    x = value(strategy, stored)
    with mr.GradientTape() as tape:
        total = (mr.function(loss) if compiled else loss)(x)
    assert tape.gradient(total, {"x": x}) == {"x": None}
