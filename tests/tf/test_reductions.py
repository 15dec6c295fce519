"""Reductions of tensors without elements, as recorded on TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf

INF = float("inf")
EXTREMES: dict[str, tuple[float, float]] = {
    "float16": (-INF, INF),
    "bfloat16": (-INF, INF),
    "float32": (-INF, INF),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "int32": (-2147483648, 2147483647),
    "uint32": (0, 4294967295),
}


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("dtype", EXTREMES)
def test_extremes_of_no_elements_are_those_of_the_dtype(dtype: str, wrap: Callable[..., Any]) -> None:
    none = tf.zeros([0], dtype)
    found = [wrap(reduce)(none) for reduce in (tf.reduce_max, tf.reduce_min)]
    assert [one.dtype for one in found] == [none.dtype] * 2
    assert tuple(float(one) for one in found) == EXTREMES[dtype]


def test_extremes_along_an_axis_without_elements() -> None:
    assert tf.reduce_max(tf.zeros([0, 2]), 0).tolist() == [-INF, -INF]
    assert tf.reduce_max(tf.zeros([2, 0]), 1, keepdims=True).tolist() == [[-INF], [-INF]]
    assert tf.reduce_min(tf.zeros([0, 2]), 0).tolist() == [INF, INF]
    assert tf.reduce_min(tf.zeros([2, 0]), axis=0).shape == (0,)
    assert float(tf.reduce_max([])) == -INF


@pytest.mark.first(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_the_mean_of_no_integers_is_zero(dtype: str) -> None:
    assert int(tf.reduce_mean(tf.zeros([0], dtype))) == 0
    assert tf.reduce_mean(tf.zeros([0, 2], dtype), 0).tolist() == [0, 0]


def test_the_mean_of_no_floats_is_not_a_number() -> None:
    assert np.isnan(float(tf.reduce_mean(tf.zeros([0]))))


@pytest.mark.parametrize("reduce", [tf.reduce_max, tf.reduce_min])
def test_the_gradient_of_an_extreme_of_no_elements_is_empty(reduce: Callable[..., Any]) -> None:
    x = tf.zeros([0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = reduce(x)
    assert tape.gradient(y, x).shape == (0,)


@pytest.mark.parametrize("find", [tf.argmax, tf.argmin])
def test_the_position_of_an_extreme_of_no_elements_is_refused(find: Callable[..., Any]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        find(tf.zeros([0]), 0)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("uint8", [200, 100], 150),
        ("int8", [100, 100, 120], 106),
        ("int16", [30000, 30000], 30000),
        ("int32", [2**31 - 1, 2**31 - 1, 2**31 - 4], 2**31 - 2),
        ("int32", [-1, -2], -1),  # rounded towards zero
        ("int32", [-3, -3], -3),
        ("uint32", [2**32 - 1, 2**32 - 3], 2**32 - 2),
    ],
)
@pytest.mark.first(3)
def test_the_mean_of_integers_whose_sum_exceeds_the_dtype(dtype, values, expected):
    tensor = tf.constant(np.array(values, dtype))
    for mean in (tf.reduce_mean, tf.function(tf.reduce_mean)):
        result = mean(tensor)
        assert (int(result), result.dtype) == (expected, np.dtype(dtype))
    assert tf.reduce_mean(tensor[None], axis=1, keepdims=True).shape == (1, 1)


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_prod"])
def test_booleans_have_no_sum(name):
    with pytest.raises(tf.errors.InvalidArgumentError, match="booleans have no sum"):
        getattr(tf, name)([True, False])


@pytest.mark.parametrize("axis", [1, 3, -2])
def test_cumulative_sums_along_an_axis_that_does_not_exist(axis):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"axis {axis} is out of bounds"):
        tf.cumsum([1, 2], axis)


@pytest.mark.first(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_histograms_of_64_bit_mode_are_computed_in_64_bits(dtype: str) -> None:
    with jax.enable_x64(True):
        large = 2**24 if dtype == "float32" else 2**53 - 64  # float32 and float64 have no odd numbers from 2**n on
        values, bounds = np.asarray([large, large + 32, large + 40], dtype), np.asarray([large, large + 64], dtype)
        counts = tf.histogram_fixed_width(values, bounds, 8)
        assert counts.tolist() == [1, 0, 0, 0, 1, 1, 0, 0]
        # The width of a bin is computed first, in float64: 7 / (10 / 100) is 70, and 7 / 10 * 100 is less.
        thousands = np.arange(1000).astype(dtype)
        assert tf.histogram_fixed_width(thousands, [0, 1000], 100).tolist() == [10] * 100


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("as_range", [lambda bounds, _: bounds, tf.constant])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_histograms_of_16_bit_floats_are_computed_in_32_bits(
    dtype: Any, as_range: Callable[..., Any], x64: bool
) -> None:
    with jax.enable_x64(x64):
        bounds = as_range([0.0, 1.0], dtype)
        place = int(np.floor(np.float32(tf.constant(0.61, dtype)) * np.float32(100)))
        assert tf.histogram_fixed_width_bins(tf.constant([0.61], dtype), bounds, 100).tolist() == [place]
        counts = tf.histogram_fixed_width(tf.constant([0.0, 0.61, 1.0], dtype), bounds, 4096)
        assert np.flatnonzero(counts).tolist() == [0, int(np.float32(tf.constant(0.61, dtype)) * 4096), 4095]


def test_the_range_of_a_histogram_has_the_dtype_of_the_values() -> None:
    with jax.enable_x64(True):
        assert tf.histogram_fixed_width(np.asarray([0.1, 0.2]), [0.1, 0.3], 2).tolist() == [1, 1]
        below = np.asarray([np.float64(np.float32(0.1)), 0.3])
        assert tf.histogram_fixed_width_bins(below, [0.0, 0.2], 2).tolist() == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_counts_of_many_integers_need_memory_for_the_counts_only(wrap: Callable[..., Any]) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, 500_000, dtype=np.int32)
    lengths = {"minlength": 50_000, "maxlength": 50_000}
    counted = wrap(lambda one: tf.math.bincount(one, **lengths))(tokens)
    np.testing.assert_array_equal(counted, np.bincount(tokens, minlength=50_000))
    rows = wrap(lambda one: tf.math.bincount(one, **lengths, axis=-1, binary_output=True))(tokens.reshape(5, -1))
    np.testing.assert_array_equal(rows, [np.bincount(row, minlength=50_000) > 0 for row in tokens.reshape(5, -1)])


@pytest.mark.parametrize("axis", [None, -1])
def test_counts_in_narrow_floats_do_not_stop_to_grow(axis: int | None) -> None:
    ones = np.zeros([1, 1000], np.int32) if axis == -1 else np.zeros(1000, np.int32)
    assert tf.reduce_max(tf.math.bincount(ones, dtype=tf.float16, axis=axis)) == 1000
    weights = tf.ones(ones.shape, tf.bfloat16)
    counted = tf.math.bincount(ones, weights=weights, axis=axis)
    assert counted.dtype == tf.bfloat16
    assert tf.reduce_max(counted) == 1000


def test_integers_that_are_not_bins_are_not_counted() -> None:
    count = tf.function(lambda one: tf.math.bincount(one, minlength=3, maxlength=3))
    assert count(np.array([-1, 0, 2, 3, 2], np.int32)).tolist() == [1, 0, 2]
    assert tf.math.bincount(np.zeros([2, 0], np.int32), minlength=2, axis=-1).tolist() == [[0, 0], [0, 0]]
    assert tf.math.bincount(np.zeros([0], np.int32), weights=np.zeros([0], np.float32), minlength=1).tolist() == [0.0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool"])
def test_a_confusion_matrix_takes_classes_of_other_dtypes(dtype: str) -> None:
    labels, predictions = tf.cast([0, 1, 1], dtype), tf.cast([1, 1, 0], dtype)
    assert tf.math.confusion_matrix(labels, predictions).tolist() == [[0, 1], [1, 1]]
    assert tf.math.confusion_matrix([0.9, 2.2], [1.0, 2.0], num_classes=3).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.long
def test_edges_of_a_histogram_are_those_of_tensorflow() -> None:
    values = tf.constant(np.linspace(0, 1, 11), tf.float32)
    for count in (tf.histogram_fixed_width, tf.function(tf.histogram_fixed_width)):
        assert count(values, [0.0, 1.0], nbins=10).tolist() == [1, 1, 1, 1, 1, 1, 2, 0, 2, 1]  # TensorFlow 2.21
    assert tf.histogram_fixed_width(tf.constant([np.inf, -np.inf, 0.5]), [0.0, 1.0], 4).tolist() == [1, 0, 1, 1]
    assert tf.histogram_fixed_width(tf.range(-2, 8), [0, 5], 1).tolist() == [10]


@pytest.mark.parametrize("name", ["reduce_mean", "reduce_std", "reduce_variance", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_out_of_range_is_named(name: str, axis: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"axis {axis} is out of bounds"):
        getattr(tf.math, name)(tf.ones([2, 3]), axis)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"axis {axis} is out of bounds"):
        tf.nn.moments(tf.ones([2, 3]), [axis])


@pytest.mark.long
def test_scatter_nd_of_booleans_is_their_disjunction() -> None:
    updates = tf.constant([True, False, True])
    for scatter in (tf.scatter_nd, tf.function(tf.scatter_nd)):
        assert scatter([[0], [0], [2]], updates, [4]).tolist() == [True, False, True, False]
