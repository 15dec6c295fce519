"""Values of different replicas combined outside `run`, as TensorFlow allows: operations copy them to one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirrored.tf as tf

MADE: dict[str, Callable[[Any, Any], Any]] = {
    "an eager run": lambda strategy, v: strategy.run(lambda: v * 2.0 + _replica()),
    "a compiled run": lambda strategy, v: strategy.run(tf.function(lambda: v * 2.0 + _replica())),
    "run in a function": lambda strategy, v: tf.function(lambda: strategy.run(lambda: v * 2.0 + _replica()))(),
    "values from a function": lambda strategy, v: strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([2.0, 4.0]) + float(context.replica_id_in_sync_group)
    ),
    "a batch of a dataset": lambda strategy, v: next(
        iter(
            strategy.experimental_distribute_dataset(
                tf.data.Dataset.from_tensors([2.0, 4.0, 3.0, 5.0]).unbatch().batch(4)
            )
        )
    ),
}
USES: dict[str, tuple[Callable[[tf.Tensor, tf.Tensor, Any], Any], list[Any]]] = {
    "concat": (lambda x, y, v: tf.concat([x, y], 0), [2, 4, 3, 5]),
    "stack": (lambda x, y, v: tf.stack((x, y)), [[2, 4], [3, 5]]),
    "convert": (lambda x, y, v: tf.convert_to_tensor([x, y]), [[2, 4], [3, 5]]),
    "+": (lambda x, y, v: x + y, [5, 9]),
    "==": (lambda x, y, v: x == y, [False, False]),
    "add_n": (lambda x, y, v: tf.add_n([x, y]), [5, 9]),
    "where": (lambda x, y, v: tf.where(tf.equal(x, 2.0), x, y), [2, 5]),
    "reduce_sum": (lambda x, y, v: tf.reduce_sum([x, y], axis=1), [6, 8]),
    "matmul": (lambda x, y, v: tf.matmul([x], [y], transpose_b=True), [[26]]),
    "a function's arguments": (lambda x, y, v: tf.function(lambda a, b: a - b)(y, x), [1, 1]),
    "a function's closure": (lambda x, y, v: tf.function(lambda: y - x)(), [1, 1]),
    "with a variable": (lambda x, y, v: y - v, [2, 3]),
    "with a reduced value": (lambda x, y, v: y + v.read_value(), [4, 7]),
    "while it is traced": (lambda x, y, v: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x + y, lambda: x), [5, 9]),
}


def _replica() -> tf.Tensor:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.first(35)
def test_components_of_different_replicas_are_combined(made: str, use: str) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"])
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])
    x, y = strategy.experimental_local_results(MADE[made](strategy, v))
    combine, expected = USES[use]
    assert combine(x, y, v).numpy().tolist() == expected
    assert [one.devices().pop().id for one in (x, y)] == [1, 2]  # each still lies on its replica's device


def test_components_of_variables_are_combined() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        mirrored = tf.Variable([1.0, 2.0])
        counted = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ)
    strategy.run(lambda: counted.assign_add(_replica() + 1.0))
    assert (mirrored.values[0] + mirrored.values[1]).tolist() == [2, 4]
    assert tf.stack(mirrored.values).tolist() == [[1, 2], [1, 2]]
    assert tf.stack(strategy.experimental_local_results(counted)).tolist() == [1, 2]


def test_a_tape_around_the_run_records_how_they_are_combined() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        x, y = strategy.experimental_local_results(strategy.run(lambda: v * v * (_replica() + 1.0)))
        loss = 5.0 * x + y
    assert float(loss) == 5 * 9 + 18
    assert float(tape.gradient(loss, v)) == 5 * 6 + 2 * 6


@pytest.mark.long
def test_a_tape_moves_cotangents_back_to_the_replicas() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable(3.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            x, y = strategy.experimental_local_results(strategy.run(lambda: v * v * (_replica() + 1.0)))
            loss = v * (5.0 * x + y)
        gradient = tape.gradient(loss, v)
    assert float(loss) == 7 * 27
    assert float(gradient) == 7 * 3 * 9
    assert float(outer.gradient(gradient, v)) == 7 * 6 * 3
