"""Indices that are negative or too large: gathers give 0, and scatters ignore them, as TensorFlow does on GPUs."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf

X = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
BAD = pytest.mark.parametrize("bad", [-1, 3, -4])


@BAD
def test_gathers_give_zero(bad):
    for found in (tf.gather(X, [0, bad]), tf.gather_nd(X, [[0], [bad]]), tf.nn.embedding_lookup(X, [0, bad])):
        np.testing.assert_array_equal(found, [[1, 2], [0, 0]])


@BAD
def test_the_gradient_of_a_gather_ignores_them(bad):
    v = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        y = tf.gather(v, [0, bad]) * 2
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(y, v)), [2, 0, 0])


@BAD
def test_scatters_ignore_them(bad):
    np.testing.assert_array_equal(tf.scatter_nd([[0], [bad]], [4.0, 5.0], [3]), [4, 0, 0])
    for scatter in (tf.tensor_scatter_nd_add, tf.tensor_scatter_nd_update, tf.tensor_scatter_nd_sub):
        np.testing.assert_array_equal(scatter(X, [[bad]], [[9.0, 9.0]]), X)


@BAD
@pytest.mark.parametrize("method", ["add", "sub", "update", "mul", "div", "max", "min"])
def test_variables_ignore_them(bad, method):
    v = tf.Variable([1.0, 2.0, 3.0])
    getattr(v, f"scatter_{method}")(tf.IndexedSlices(tf.constant([9.0]), tf.constant([bad])))
    np.testing.assert_array_equal(v, [1, 2, 3])


@BAD
def test_indexed_slices_ignore_them(bad):
    slices = tf.IndexedSlices(tf.constant([9.0, 5.0]), tf.constant([bad, 1]), dense_shape=(3,))
    np.testing.assert_array_equal(tf.convert_to_tensor(slices), [0, 5, 0])
