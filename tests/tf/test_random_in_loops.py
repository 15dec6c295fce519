"""Random numbers in loops of compiled replica functions: the same in every layout of the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ReplicaDivergenceError


def mapped(x: Any) -> Any:
    return tf.map_fn(lambda one: one + tf.random.uniform([]), x)


def repeated(x: Any) -> Any:
    total = tf.constant(0.0)
    for _ in tf.range(3):
        total += tf.random.uniform([])
    return total + tf.reduce_sum(x)


def while_loop(x: Any) -> Any:
    def body(i: Any, total: Any) -> tuple[Any, Any]:
        return i + 1, total + tf.random.uniform([])

    return tf.while_loop(lambda i, total: i < 3, body, (tf.constant(0), tf.reduce_sum(x)))[1]


def nested_loops(x: Any) -> Any:
    total = tf.constant(0.0)
    for step in tf.range(2):
        for _ in tf.range(3):
            total += tf.random.uniform([])
        if step > 0:
            total += tf.random.uniform([])
    return total + tf.reduce_sum(x)


def run(devices: int, function: Callable[[Any], Any]) -> list[Any]:
    tf.random.set_seed(3)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=4)
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros(8, np.float32)).batch(8)
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
    out = tf.function(lambda: strategy.run(function, (batch,)))()
    return [np.asarray(one).tolist() for one in strategy.experimental_local_results(out)]


@pytest.mark.first(1)
@pytest.mark.parametrize("function", [mapped, repeated, while_loop, nested_loops])
def test_loops_draw_the_same_numbers_in_every_layout(function: Callable[[Any], Any]) -> None:
    found = [run(devices, function) for devices in (4, 2, 1)]
    assert found[0] == found[1] == found[2]
    assert len({str(one) for one in found[0]}) == 4


def test_replicas_that_draw_different_numbers_of_times_are_refused() -> None:
    def drawing(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        total = tf.reduce_sum(x)
        for _ in tf.range(context.replica_id_in_sync_group + 1):
            total += tf.random.uniform([])
        return total

    with pytest.raises(ReplicaDivergenceError):
        run(2, drawing)


def by_if(x: Any) -> Any:
    if tf.random.uniform([]) < 0.5:
        x += tf.random.normal(x.shape)
    return tf.reduce_sum(x)


def by_cond(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 1.0, lambda: tf.random.normal([]), lambda: tf.constant(0.0))


@pytest.mark.parametrize("compiled", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize("drawing", [by_if, by_cond])
def test_a_draw_in_a_branch_that_a_replica_decides_names_its_remedy(drawing: Any, compiled: bool) -> None:
    """The remedy was that of any mirrored variable: to reduce its value."""
    tf.random.set_seed(1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([2.0 * context.replica_id_in_sync_group])
    )

    def step() -> Any:
        return strategy.run(drawing, (x,))

    called = tf.function(step) if compiled else step

    def steps() -> None:
        for _ in range(1 if compiled else 20):  # an eager run is refused once the coins of the replicas differ
            called()

    with pytest.raises(ReplicaDivergenceError, match="all replicas must draw equally often") as raised:
        steps()
    assert "draw before the branch" in str(raised.value)
    assert "aggregation" not in str(raised.value)


@pytest.mark.parametrize("compiled", [True, False], ids=["function", "eager"])
def test_a_draw_before_the_branch_is_selected(compiled: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def drawing(x: Any) -> Any:
        coin, noise = tf.random.uniform([]) < 0.5, tf.random.normal(x.shape)
        return tf.where(coin, x + noise, x)

    def step() -> Any:
        return strategy.run(drawing, (tf.zeros([2]),))

    called = tf.function(step) if compiled else step
    found = np.stack([np.stack(called().values) for _ in range(8)])
    assert 0 < np.count_nonzero(found) < found.size
