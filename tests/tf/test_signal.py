"""Cosine transforms of all types against SciPy's, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import mirrored.tf as tf
from mirrored.errors import ArgumentTypeError, MirroredError

X = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
INVERSES = {1: 1, 2: 3, 3: 2, 4: 4}
TYPES = [(1, None), (2, None), (2, "ortho"), (3, None), (3, "ortho"), (4, None), (4, "ortho")]
kinds = pytest.mark.parametrize(("kind", "norm"), TYPES)


@kinds
@pytest.mark.parametrize("n", [None, 5, 9])
@pytest.mark.sampled(3)
@pytest.mark.first(3)
def test_cosine_transforms_are_those_of_scipy(kind, norm, n):
    found = tf.signal.dct(X, kind, n, -1, norm)
    assert found.dtype == "float32"
    wanted = scipy.fft.dct(X.astype(np.float64), kind, n, norm=norm)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    wanted = scipy.fft.dct(X.astype(np.float64), INVERSES[kind], n, norm=norm)
    np.testing.assert_allclose(tf.signal.idct(X, kind, n, -1, norm), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_compiled_they_are_the_same():
    found = jax.jit(lambda x: [tf.signal.dct(x, kind, 5, -1, norm) for kind, norm in TYPES])(X)
    for one, (kind, norm) in zip(found, TYPES, strict=True):
        np.testing.assert_allclose(one, tf.signal.dct(X, kind, 5, -1, norm), rtol=1e-5, atol=1e-5)


@kinds
@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.first(3)
def test_the_inverse_gives_the_signal_back_up_to_a_factor(kind, norm, size):
    x = X[..., :size]
    there = tf.signal.dct(x, type=kind, norm=norm)
    factor = 1 if norm else 2 * size - 2 if kind == 1 else 2 * size
    np.testing.assert_allclose(tf.signal.idct(there, type=kind, norm=norm), factor * x, rtol=1e-3, atol=1e-4)


@pytest.mark.long
@kinds
@pytest.mark.sampled(3)
def test_gradients_are_those_of_the_matrix(kind, norm):
    matrix = scipy.fft.dct(np.eye(6), kind, norm=norm)
    x = jnp.asarray(X[0, 0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.signal.dct(x, type=kind, norm=norm) * np.arange(6, dtype=np.float32))
    np.testing.assert_allclose(tape.gradient(y, x), matrix @ np.arange(6), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_sixty_four_bits_stay():
    with jax.enable_x64(True):
        found = tf.signal.dct(X.astype(np.float64), type=4, norm="ortho")
        assert found.dtype == "float64"
        np.testing.assert_allclose(found, scipy.fft.dct(X.astype(np.float64), 4, norm="ortho"), rtol=1e-10)


def test_no_samples_give_none():
    assert tf.signal.dct(np.ones((2, 0), np.float32)).shape == (2, 0)


@pytest.mark.parametrize("transform", [tf.signal.dct, tf.signal.idct], ids=["dct", "idct"])
@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"axis": 0}, NotImplementedError, "axis=0"),
        ({"type": 5}, ValueError, "type must be 1, 2, 3 or 4"),
        ({"n": 0}, ValueError, "n=0"),
        ({"norm": "backward"}, ValueError, "norm='backward'"),
        ({"type": 1, "norm": "ortho"}, ValueError, "type=1, which has no normalization"),
        ({"input": np.ones((3, 1), np.float32), "type": 1}, ValueError, r"shape \[3, 1\] was passed with type=1"),
        ({"input": np.float32(1.0)}, ValueError, "the tensor is a scalar"),
        ({"input": np.arange(4)}, TypeError, "the tensor has dtype int"),
        ({"input": np.ones(4, np.complex64)}, TypeError, "the tensor has dtype complex64"),
    ],
    ids=str,
)
def test_what_is_refused(transform, arguments, kind, says):
    with pytest.raises(kind, match=says) as caught:
        transform(**{"input": X, **arguments})
    assert isinstance(caught.value, MirroredError)
    assert caught.value.called == f"tf.signal.{transform.__name__}"
    assert caught.value.remedy
    assert (kind is TypeError) == isinstance(caught.value, ArgumentTypeError)


@pytest.mark.long
def test_stft_without_a_window():
    np.testing.assert_allclose(tf.signal.stft(tf.ones([4]), 4, 2, window_fn=None), [[4, 0, 0]], atol=1e-6)
