"""Gradients of decompositions of Hermitian matrices, as TensorFlow's source defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

A = np.array([[4.0, 1.0], [1.0, 3.0]], np.float32)
# d log(det A) / dA, which the gradient of a Cholesky factor spreads over both triangles, that of eigenvalues does not.
INVERSE = np.linalg.inv(A)


def by_cholesky(a: Any) -> Any:
    return 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(a))))


def by_eigenvalues(a: Any) -> Any:
    return tf.reduce_sum(tf.math.log(tf.linalg.eigvalsh(a)))


def by_eigenvectors(a: Any) -> Any:
    return tf.reduce_sum(tf.math.log(tf.linalg.eigh(a)[0]))


LOWER = np.tril(INVERSE) + np.tril(INVERSE, -1)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("function", "expected"), [(by_cholesky, INVERSE), (by_eigenvalues, LOWER), (by_eigenvectors, LOWER)]
)
def test_gradients_with_respect_to_the_lower_triangle(function: Callable[[Any], Any], expected: Any) -> None:
    a = tf.Variable(A)
    with tf.GradientTape() as tape:
        y = function(a)
    np.testing.assert_allclose(y, np.log(11.0), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(y, a), expected, rtol=1e-4, atol=1e-6)
