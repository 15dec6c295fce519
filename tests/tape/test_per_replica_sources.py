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
@pytest.mark.first(4)
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
@pytest.mark.first(2)
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


READS: dict[str, Callable[..., Any]] = {
    "values": lambda strategy, x: x.values,
    "local_results": lambda strategy, x: strategy.experimental_local_results(x),
}


@layouts
@pytest.mark.parametrize("stored", ["rows", "components"])
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_components_that_are_read_in_the_block_are_tracked(devices: int, replicas: int, stored: str, read: Any) -> None:
    """Alone, combined with each other, and beside a run."""
    strategy, loss = made(devices, replicas)
    x = value(strategy, stored)
    read(strategy, x)  # what was read before the block is kept
    with mr.GradientTape(persistent=True) as tape:
        tape.watch(x)
        parts = read(strategy, x)
        first = (parts[0] ** 2).sum()
        combined = sum(((number + 1) * part).sum() for number, part in enumerate(parts)) + loss(x)
    rows = np.arange(2.0 * replicas).reshape(replicas, 2)
    own = strategy.experimental_local_results(tape.gradient(first, x))
    np.testing.assert_array_equal(own[0], 2 * rows[0])
    assert not any(np.any(part) for part in own[1:] if part is not None)
    gradient = np.stack(strategy.experimental_local_results(tape.gradient(combined, x)))
    np.testing.assert_array_equal(gradient, 2 * rows + np.arange(1, replicas + 1)[:, None])
    plain = strategy.experimental_local_results(x)
    assert all(type(part) is type(rows_of) for part, rows_of in zip(plain, read(strategy, x), strict=True))


@pytest.mark.parametrize("stored", ["rows", "components"])
def test_components_stay_on_their_devices_under_a_tape(stored: str) -> None:
    strategy, _ = made(2, 2)
    x = value(strategy, stored)
    with mr.GradientTape() as tape:
        tape.watch(x)
        assert [next(iter(part.devices())) for part in x.values] == jax.devices()[:2]
