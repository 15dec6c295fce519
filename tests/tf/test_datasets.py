from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf


def test_elements_are_tensors() -> None:
    element = next(iter(tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0]}).map(lambda e: e["x"] * 2.0)))
    assert isinstance(element, jax.Array)
    assert element.numpy() == 2.0


def test_numpy_iterator_and_cardinality() -> None:
    dataset = tf.data.Dataset.range(5).batch(2)
    assert all(isinstance(element, np.ndarray) for element in dataset.as_numpy_iterator())
    assert dataset.cardinality().numpy() == len(dataset) == 3
    assert dataset.repeat().cardinality() == tf.data.INFINITE_CARDINALITY


def test_functions_take_operations_of_the_facade() -> None:
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32) / 2.0).batch(2)
    assert [element.numpy().tolist() for element in dataset] == [[0.0, 0.5], [1.0, 1.5]]
    assert float(dataset.unbatch().reduce(tf.constant(0.0), lambda total, x: total + x)) == 3.0


def test_strings_are_bytes() -> None:
    assert list(tf.data.Dataset.from_tensor_slices(["a", "b"])) == [b"a", b"b"]


def test_the_end_of_a_distributed_dataset_is_out_of_range() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    reading = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(2).batch(2)))
    reading.get_next()
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        reading.get_next()


ENDED: dict[str, tuple[Callable[[Any], Any], type[BaseException]]] = {
    "next": (next, StopIteration),
    "get_next": (lambda it: it.get_next(), tf.errors.OutOfRangeError),
    "next in a function": (tf.function(lambda it: next(it)), tf.errors.OutOfRangeError),
    "get_next in a function": (tf.function(lambda it: it.get_next()), tf.errors.OutOfRangeError),
    "optional": (lambda it: it.get_next_as_optional().get_value(), tf.errors.InvalidArgumentError),
    "optional of a function": (
        lambda it: tf.function(lambda: it.get_next_as_optional())().get_value(),
        tf.errors.InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("take", ENDED)
@pytest.mark.parametrize("how", ["plain", "distributed", "from a function"])
def test_what_is_raised_at_the_end_is_as_recorded_on_tensorflow(how: str, take: str) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.Dataset.range(2).batch(2)
    reading = iter(
        {
            "plain": lambda: dataset,
            "distributed": lambda: strategy.experimental_distribute_dataset(dataset),
            "from a function": lambda: strategy.distribute_datasets_from_function(lambda context: dataset.repeat(2)),
        }[how]()
    )
    next(reading)
    call, error = ENDED[take]
    with pytest.raises(error):
        call(reading)


def test_options_have_the_names_of_tensorflow() -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.range(3).with_options(options)
    assert dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA


@pytest.mark.parametrize("dtype", [tf.int32, tf.float32, "uint8", np.float64])
def test_a_range_has_the_requested_dtype(dtype: Any) -> None:
    numbers = tf.data.Dataset.range(1, 9, 3, output_type=dtype)
    assert numbers.element_spec.dtype == tf.as_dtype(dtype)
    for found in (numbers, numbers.batch(3).unbatch(), numbers.shuffle(1)):
        values = list(found.as_numpy_iterator())
        assert ([*map(int, values)], {one.dtype.name for one in values}) == ([1, 4, 7], {tf.as_dtype(dtype).name})
