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


def test_a_band_of_booleans_is_a_mask() -> None:
    mask = tf.linalg.band_part(tf.ones([2, 2], tf.bool), -1, 0)
    assert mask.dtype == tf.bool
    assert (~mask).numpy().tolist() == [[False, True], [False, False]]


def test_a_batch_of_tridiagonal_matrices_is_packed() -> None:
    diagonals = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    rhs = np.ones([3, 3, 1], np.float32)
    dense = np.stack(
        [np.diag(main) + np.diag(above[:2], 1) + np.diag(below[1:], -1) for above, main, below in diagonals]
    )
    np.testing.assert_allclose(tf.linalg.tridiagonal_matmul(diagonals, rhs), dense @ rhs)
    parts = [diagonals[:, place] for place in range(3)]
    np.testing.assert_allclose(tf.linalg.tridiagonal_matmul(parts, rhs, diagonals_format="sequence"), dense @ rhs)


@pytest.mark.parametrize(("coefficients", "expected"), [([1.0, 0.0, 1.0], np.inf), ([2.0], 2.0), ([], 0.0)])
def test_a_polynomial_at_infinity(coefficients: list[float], expected: float) -> None:
    assert tf.math.polyval(coefficients, tf.constant(np.inf)).numpy() == expected


@pytest.mark.long
def test_the_log_determinant_of_a_matrix_that_is_not_positive_definite() -> None:
    matrices = tf.constant([[[2.0, 0.0], [0.0, 3.0]], [[1.0, 2.0], [2.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
    np.testing.assert_allclose(tf.linalg.logdet(matrices), [np.log(6), np.nan, np.nan], rtol=1e-6)
    hermitian = tf.constant([[2, 1j], [-1j, 2]], tf.complex64)
    np.testing.assert_allclose(tf.linalg.logdet(hermitian), np.log(3), rtol=1e-6)
    with tf.GradientTape() as tape:
        tape.watch(matrices)
        y = tf.linalg.logdet(matrices)[0]
    np.testing.assert_allclose(tape.gradient(y, matrices)[0], [[1 / 2, 0], [0, 1 / 3]], rtol=1e-6)


@pytest.mark.long
def test_a_matrix_without_a_real_square_root() -> None:
    assert np.isnan(tf.linalg.sqrtm(tf.constant([[-1.0, 0.0], [0.0, 4.0]]))).all()
    singular = np.ones([4, 4], np.float32)
    np.testing.assert_allclose(tf.linalg.sqrtm(singular), singular / 2, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 5, 48])
def test_the_square_root_of_a_singular_matrix(size: int) -> None:
    """Rounding errors divided by sums of zeros were NaN for many rows."""
    matrix = np.ones([size, size], np.float32)
    root = tf.linalg.sqrtm(matrix)
    np.testing.assert_allclose(root @ root, matrix, atol=1e-4)
    assert np.isnan(tf.linalg.sqrtm(matrix - 2 * np.eye(size, dtype=np.float32))).all()
