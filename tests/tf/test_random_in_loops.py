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
