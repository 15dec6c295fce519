"""Operations whose result has a size that depends on values: eager code computes them, compiled code says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

X = tf.constant([1.0, 2.0, 2.0])
IDS = tf.constant([1, 0, 1])
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "boolean_mask": (lambda x, ids: tf.boolean_mask(x, ids > 0), [1.0, 2.0]),
    "where": (lambda x, ids: tf.where(x > 1), [[1], [2]]),
    "unique": (lambda x, ids: tf.unique(x).y, [1.0, 2.0]),
    "unique_with_counts": (lambda x, ids: tf.unique_with_counts(x).count, [1, 2]),
    "dynamic_partition": (lambda x, ids: tf.dynamic_partition(x, ids, 2)[1], [1.0, 2.0]),
    "dynamic_stitch": (lambda x, ids: tf.dynamic_stitch([ids[:2]], [x[:2]]), [2.0, 1.0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_eager_code_computes_them(name: str) -> None:
    call, expected = CALLS[name]
    np.testing.assert_array_equal(call(X, IDS), expected)
    of_constants = tf.function(lambda: call(tf.constant([1.0, 2.0, 2.0]), tf.constant([1, 0, 1])))
    np.testing.assert_array_equal(of_constants(), expected)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_code_refuses_them_with_a_remedy(name: str) -> None:
    call, _ = CALLS[name]
    called = name.removesuffix("_with_counts")
    with pytest.raises(tf.errors.UnimplementedError, match=rf"tf\.{called}: a tensor of shape .*compiled[\s\S]*remedy"):
        tf.function(call)(X, IDS)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(tf.errors.UnimplementedError, match=rf"tf\.{called}"):
        strategy.run(tf.function(call), args=(X, IDS))


def test_the_remedy_for_a_masked_mean_has_its_value_and_gradient() -> None:
    @tf.function
    def masked_mean(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            mask = x > 1
            mean = tf.reduce_sum(tf.where(mask, x, 0.0)) / tf.reduce_sum(tf.cast(mask, tf.float32))
        return mean, tape.gradient(mean, x)

    mean, gradient = masked_mean(X)
    assert float(mean) == 2.0
    np.testing.assert_array_equal(gradient, [0, 0.5, 0.5])


# Strings are on the host: a function returns them as they are.


def test_a_function_returns_strings_of_constants() -> None:
    split = tf.function(lambda: (tf.strings.split("a b"), tf.constant(1.0)))
    for _ in range(2):
        parts, one = split()
        assert parts.tolist() == [b"a", b"b"]
        assert float(one) == 1.0
    with pytest.raises(ValueError, match="read-only"):
        parts[0] = b"changed"  # the next call would return it


def test_a_compiled_run_refuses_strings() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(ValueError, match="replicas returned HostArray"):
        strategy.run(tf.function(lambda: tf.strings.split("a b")))
