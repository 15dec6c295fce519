"""Derivatives where they jump, as recorded on TensorFlow 2.21, or as its gradient functions define them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf

A, B = [0.0, 1.0, -1.0], [0.0, 1.0, 2.0]

RECORDED: dict[str, tuple[Callable[[Any, Any], Any], list[float], list[float] | None]] = {
    "abs": (lambda a, b: tf.abs(a), [0.0, 1.0, -1.0], None),
    "maximum": (tf.maximum, [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]),
    "minimum": (tf.minimum, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    "clip_by_value": (lambda a, b: tf.clip_by_value(a, 0.0, 1.0), [1.0, 1.0, 0.0], None),
    "leaky_relu": (lambda a, b: tf.nn.leaky_relu(a), [0.2, 1.0, 0.2], None),
    "selu": (lambda a, b: tf.nn.selu(a), [1.050701, 1.050701, 0.6467686], None),
    "norm of order 1": (lambda a, b: tf.norm(a, 1), [0.0, 1.0, -1.0], None),
    "norm of order 1 of rows": (lambda a, b: tf.norm(a[None], 1, axis=[1]), [0.0, 1.0, -1.0], None),
    "largest of zeros": (lambda a, b: tf.norm(a - tf.stop_gradient(a), np.inf), [0.0, 0.0, 0.0], None),
    "total_variation": (lambda a, b: tf.image.total_variation(a[:, None, None]), [-1.0, 2.0, -1.0], None),
    "total_variation of equal pixels": (
        lambda a, b: tf.image.total_variation((a - tf.stop_gradient(a))[:, None, None]),
        [0.0, 0.0, 0.0],
        None,
    ),
    "maximum of a Python int": (lambda a, b: tf.maximum(a, 0), [1.0, 1.0, 0.0], None),
    "maximum of an int tensor": (lambda a, b: tf.maximum(a, tf.constant([0, 1, 0])), [1.0, 1.0, 0.0], None),
    "minimum of a Python int": (lambda a, b: tf.minimum(a, 1), [1.0, 1.0, 1.0], None),
    "hinge": (lambda a, b: tf.maximum(0, 1 - a), [-1.0, 0.0, -1.0], None),
    "multiply_no_nan of a Python int": (lambda a, b: tf.math.multiply_no_nan(3, a), [3.0, 3.0, 3.0], None),
    "multiply_no_nan": (lambda a, b: tf.math.multiply_no_nan(a + 3, b), [0.0, 1.0, 2.0], [3.0, 4.0, 2.0]),
    "pow": (lambda a, b: tf.pow(2 * a, b + 1), [2.0, 8.0, 24.0], [0.0, 4 * math.log(2), 0.0]),
    "relu": (lambda a, b: tf.nn.relu(a), [0.0, 1.0, 0.0], None),
}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.first(8)
def test_derivatives_at_a_jump_are_those_of_tensorflow(name: str, compiled: bool) -> None:
    operation, of_a, of_b = RECORDED[name]

    def gradients(a: Any, b: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            result = operation(a, b)
        return tape.gradient(result, [a, b])

    computed = (tf.function(gradients) if compiled else gradients)(tf.constant(A), tf.constant(B))
    np.testing.assert_allclose(computed[0], of_a, rtol=1e-6)
    if of_b is None:
        assert computed[1] is None
    else:
        np.testing.assert_allclose(computed[1], of_b, rtol=1e-6)


def test_values_are_those_of_the_plain_operations() -> None:
    special = np.array([-np.inf, -2.5, -0.0, 0.0, 1.5, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(tf.abs(tf.constant(special)), np.abs(special))
    np.testing.assert_array_equal(tf.maximum(tf.constant(special), 1.0), np.maximum(special, 1))
    np.testing.assert_array_equal(tf.minimum(tf.constant(special), 1.0), np.minimum(special, 1))
    assert tf.abs(tf.constant([-3, 2])).numpy().tolist() == [3, 2]
    assert tf.abs(tf.constant(3 + 4j)).numpy() == 5.0
    assert tf.maximum(tf.constant([1, 5]), 3).dtype == tf.int32
    assert tf.maximum(tf.constant([1, 5]), tf.constant(3.0)).dtype == tf.float32
    assert tf.maximum(tf.constant([1, 5], tf.bfloat16), 3).dtype == tf.bfloat16
    assert tf.minimum(2**40, tf.constant([1.0])).numpy() == 1.0  # more than int32 holds


@pytest.mark.long
def test_second_derivatives_exist() -> None:
    x = tf.Variable([2.0, -3.0])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = tf.reduce_sum(tf.abs(x) * x * tf.maximum(x, 0.0))
        first = inner.gradient(y, x)
    np.testing.assert_allclose(first, [12.0, 0.0])
    np.testing.assert_allclose(outer.gradient(first, x), [12.0, 0.0])


def test_a_variable_is_its_own_target() -> None:
    """The guide of automatic differentiation differentiates a branch that returns a variable itself."""
    v, w = tf.Variable([2.0, 3.0]), tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        y = w * 2.0
    assert tape.gradient(v, v).numpy().tolist() == [1.0, 1.0]
    assert [one if one is None else one.numpy().tolist() for one in tape.gradient([v, y], [v, w])] == [[1.0, 1.0], 2.0]
    assert tape.gradient(v, w) is None
    assert tape.gradient(v, v, output_gradients=tf.constant([5.0, 6.0])).numpy().tolist() == [5.0, 6.0]


def test_a_factor_of_zero_hides_an_infinite_one_from_forward_derivatives() -> None:
    x, moved = jnp.array([np.inf, 2.0]), jnp.ones(2)
    _, moved = jax.jvp(lambda x: tf.math.multiply_no_nan(x, tf.constant([0.0, 1.0])), [x], [moved])
    assert moved.tolist() == [0, 1]


def test_mixed_second_derivatives_of_powers_of_negative_bases_are_finite() -> None:
    x, y = tf.constant(-2.0), tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(y)
        with tf.GradientTape() as inner:
            inner.watch(x)
            result = tf.pow(x, y)
        by_base = inner.gradient(result, x)
    assert by_base.numpy() == -4
    assert np.isfinite(outer.gradient(by_base, y).numpy())


def test_a_power_of_a_negative_python_number_has_the_derivative_zero() -> None:
    exponent = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(exponent)
        power = tf.pow(-2.0, exponent)
    assert power.numpy().tolist() == [-2.0, 4.0]
    assert tape.gradient(power, exponent).numpy().tolist() == [0.0, 0.0]


@pytest.mark.first(1)
@pytest.mark.parametrize("norm", [5.0, 5])
@pytest.mark.parametrize("clip", [tf.clip_by_norm, lambda t, norm: tf.clip_by_global_norm([t], norm)[0][0]])
def test_clipping_to_the_norm_of_a_tensor_has_the_derivative_of_the_clipped_side(
    clip: Callable[..., Any], norm: float
) -> None:
    # TensorFlow's maximum and minimum pass the whole gradient to their first operand where both are equal.
    t = tf.constant([3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(t)
        clipped = clip(t, norm)
    np.testing.assert_allclose(clipped, [3, 4], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(clipped, t), [1 - 7 * 3 / 25, 1 - 7 * 4 / 25], rtol=1e-5)


@pytest.mark.first(1)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_sign_has_the_gradient_zero_and_other_steps_have_none(wrap: Any) -> None:
    def slopes(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                size = tf.abs(x)
            slope = inner.gradient(size, x)
            steps = [tf.sign(x), slope, tf.floor(x), tf.math.ceil(x), tf.round(x), tf.math.rint(x)]
        return [outer.gradient(one, x) for one in steps]

    found = wrap(slopes)(tf.constant([2.0, -1.0, 0.0]))
    assert [one if one is None else one.tolist() for one in found] == [[0.0] * 3] * 2 + [None] * 4
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        infinite = tf.sign(x) * np.inf
    assert float(tape.gradient(infinite, x)) == 0.0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("initial", [0.25, [0.25, 0.5, 0.75]])
def test_leaky_relu_takes_a_slope_that_is_trained(initial: Any, compiled: bool) -> None:
    slope = tf.Variable(initial)

    def gradients(features: Any, alpha: Any) -> Any:
        with tf.GradientTape() as tape:
            result = tf.nn.leaky_relu(features, alpha)
        return result, tape.gradient(result, slope)

    features = tf.constant([-2.0, 3.0, -4.0])
    result, gradient = (tf.function(gradients) if compiled else gradients)(features, slope)
    np.testing.assert_allclose(result, np.where(features > 0, features, initial * features))
    np.testing.assert_allclose(gradient, -6.0 if np.ndim(initial) == 0 else [-2.0, 0.0, -4.0])


@pytest.mark.parametrize("features", [[-2, 3], np.array([-2, 3], np.int8)])
@pytest.mark.parametrize("alpha", [0.5, 2, np.float32(0.5), tf.constant(0.5), tf.constant(2)])
def test_leaky_relu_of_integers_is_computed_in_float32(features: Any, alpha: Any) -> None:
    result = tf.nn.leaky_relu(features, alpha)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [-2 * float(alpha), 3.0])


@pytest.mark.parametrize("alpha", [0.2, np.float64(0.2), np.float32(0.2), tf.constant(0.2)])
def test_leaky_relu_keeps_the_dtype_of_its_features(alpha: Any) -> None:
    assert tf.nn.leaky_relu(tf.constant([-1.0, 2.0], tf.bfloat16), alpha).dtype == tf.bfloat16


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.float16, np.float32])
def test_relu6_keeps_the_dtype(dtype: type[np.generic]) -> None:
    result = tf.nn.relu6(tf.constant(np.array([0, 3, 9], dtype)))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, [0, 3, 6])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_the_derivative_of_spence(wrap: Any) -> None:
    """JAX's is NaN between 1 and 2, and 0 at 1."""
    x = tf.constant([0.5, 1.0, 1.5, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = wrap(tf.math.special.spence)(x)
    expected = [2 * math.log(0.5), -1.0, -2 * math.log(1.5), -math.log(2.0), -math.log(3.0) / 2]
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-5)
