"""Operations whose result has a size that depends on values: eager code computes them, compiled code says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
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
    "math.bincount": (lambda x, ids: tf.math.bincount(ids), [1, 2]),
    "math.bincount ": (lambda x, ids: tf.math.bincount(ids, weights=x, minlength=3), [2.0, 3.0, 0.0]),
    "math.confusion_matrix": (lambda x, ids: tf.math.confusion_matrix(ids, ids), [[1, 0], [0, 2]]),
    "math.confusion_matrix ": (lambda x, ids: tf.math.confusion_matrix(ids, ids, weights=x), [[2, 0], [0, 3]]),
}
SIZED: dict[str, tuple[Callable[..., Any], Any]] = {
    "bincount": (lambda x, ids: tf.math.bincount(ids, minlength=2, maxlength=2), [1, 2]),
    "bincount of tensors": (lambda x, ids: tf.math.bincount(ids, x, tf.constant(2), tf.constant(2)), [2.0, 3.0]),
    "confusion_matrix": (lambda x, ids: tf.math.confusion_matrix(ids, ids, 2, weights=x), [[2, 0], [0, 3]]),
    "confusion_matrix of a tensor": (
        lambda x, ids: tf.math.confusion_matrix(ids, ids, tf.constant(2)),
        [[1, 0], [0, 2]],
    ),
    "numpy.unique": (lambda x, ids: tf.experimental.numpy.unique(ids, size=2), [0, 1]),
    "numpy.repeat": (lambda x, ids: tf.experimental.numpy.repeat(ids, ids, total_repeat_length=2), [1, 1]),
}
# An argument that determines a shape or selects a computation, computed in compiled code.
NUMBERS: dict[str, Callable[..., Any]] = {
    "math.bincount": lambda n: tf.math.bincount([1], minlength=n, maxlength=n),
    "math.confusion_matrix": lambda n: tf.math.confusion_matrix([0], [0], num_classes=n),
    "image.central_crop": lambda n: tf.image.central_crop(tf.ones([4, 4, 3]), n / 2),
    "batch_to_space": lambda n: tf.batch_to_space(tf.ones([4, 1, 1, 1]), [2, 2], tf.stack([[0, 0], [0, n]])),
    "linalg.diag": lambda n: tf.linalg.diag([1.0], num_rows=n),
    "unstack": lambda n: tf.unstack(tf.ones([1]), num=n),
    "ensure_shape": lambda n: tf.ensure_shape(tf.ones([1]), [n]),
    "tensordot": lambda n: tf.tensordot(tf.ones([2, 2]), tf.ones([2, 2]), n),
    "nn.dropout": lambda n: tf.nn.dropout(tf.ones([2, 2]), 0.5, noise_shape=[n, 1]),
    "strings.as_string": tf.strings.as_string,
}
NUMPY: dict[str, Callable[..., Any]] = {
    "unique": tf.experimental.numpy.unique,
    "nonzero": tf.experimental.numpy.nonzero,
    "where": lambda ids: tf.experimental.numpy.where(ids > 0),
    "compress": lambda ids: tf.experimental.numpy.compress(ids > 0, ids),
    "repeat": lambda ids: tf.experimental.numpy.repeat(ids, ids),
    "bincount": tf.experimental.numpy.bincount,
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
    called = name.strip().removesuffix("_with_counts")
    with pytest.raises(tf.errors.UnimplementedError, match=rf"tf\.{called}: a tensor of shape .*compiled[\s\S]*remedy"):
        tf.function(call)(X, IDS)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(tf.errors.UnimplementedError, match=rf"tf\.{called}"):
        strategy.run(tf.function(call), args=(X, IDS))


@pytest.mark.parametrize("name", SIZED)
def test_compiled_code_computes_them_if_the_size_is_known(name: str) -> None:
    call, expected = SIZED[name]
    np.testing.assert_array_equal(tf.function(call)(X, IDS), expected)


@pytest.mark.first(5)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_determine_a_shape_must_be_known_while_tracing(name: str) -> None:
    NUMBERS[name](tf.constant(1))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"tf\.{name}: .*traced value[\s\S]*remedy"):
        tf.function(NUMBERS[name])(tf.constant(1))


def test_the_error_of_a_function_that_an_operation_calls_remains() -> None:
    with pytest.raises(jax.errors.ConcretizationTypeError):
        tf.function(lambda x: tf.map_fn(float, x))(X)


@pytest.mark.parametrize("name", NUMPY)
def test_functions_of_numpy_name_the_argument_for_the_size(name: str) -> None:
    NUMPY[name](IDS)
    with pytest.raises(tf.errors.UnimplementedError, match=rf"numpy\.{name}: [\s\S]*remedy: pass .*=n"):
        tf.function(NUMPY[name])(IDS)


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
