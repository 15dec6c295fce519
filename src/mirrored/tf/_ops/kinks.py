"""Operations with discontinuous derivatives, such as `abs`, with TensorFlow's derivatives at the discontinuities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp


def _is_real(*arrays: jax.Array) -> bool:
    return all(jnp.issubdtype(jnp.result_type(array), jnp.floating) for array in arrays)


def _of_kind(real: Callable[..., Any], plain: Callable[..., Any], x: Any, y: Any) -> jax.Array:
    """Calls ``real(x, y)`` if the result dtype is real floating-point, and ``plain(x, y)`` otherwise.

    An integer beside a real operand, such as the 0 of ``tf.maximum(x, 0)``, becomes real. A Python number stays one,
    so that the result has the dtype of the other operand.
    """
    if not _is_real(x, y):
        dtype = jnp.result_type(x, y)
        if not jnp.issubdtype(dtype, jnp.floating):
            return plain(x, y)  # type: ignore[no-any-return]
        x, y = (float(one) if isinstance(one, (int, float)) else jnp.asarray(one, dtype) for one in (x, y))
    return real(x, y)  # type: ignore[no-any-return]


def _with_derivative(value: Callable[..., jax.Array], derivative: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Returns a compiled version of a function, with `derivative` as its JVP rule.

    Args:
        value: The function.
        derivative: Maps the operands, followed by their tangents, to the tangent of the result.
    """
    function = jax.custom_jvp(value)
    function.defjvp(lambda primals, tangents: (function(*primals), derivative(*primals, *tangents)))
    return jax.jit(function)


def _times(x: jax.Array, y: jax.Array) -> jax.Array:
    zero = y == 0
    return jnp.where(zero, 0, jnp.where(zero, 0, x) * y)


def _power_jvp(x: jax.Array, y: jax.Array, of_x: jax.Array, of_y: jax.Array) -> jax.Array:
    """Computes the JVP of ``x ** y``; the derivative with respect to y is 0 where x is 0 or less."""
    # In terms of `_power`, so that second derivatives have the same rule.
    order = jnp.where(y == 0, 1, y)
    by_base = jnp.where(y == 0, 0, order * _power(x, order - 1))
    positive = x > 0
    by_exponent = jnp.where(positive, _power(x, y) * jnp.log(jnp.where(positive, x, 1)), 0)
    total: jax.Array = by_base * of_x + by_exponent * of_y
    return total


def _times_jvp(x: jax.Array, y: jax.Array, of_x: jax.Array, of_y: jax.Array) -> jax.Array:
    """Computes the JVP of `multiply_no_nan`; the derivative with respect to y is 0 where y is 0 and x is not finite."""
    return _times(of_x, y) + jnp.where((y == 0) & ~jnp.isfinite(x), 0, x) * of_y


def _zero_tangent(moved: jax.Array) -> jax.Array:
    """Returns zeros that depend on the tangent `moved`, so that the gradient is zeros instead of None.

    A tangent that is NaN gives zeros, too.
    """
    return jnp.where(jnp.zeros(moved.shape, bool), moved, jnp.zeros_like(moved))


_sign: Final = _with_derivative(jnp.sign, lambda x, moved: _zero_tangent(moved))
_absolute: Final = _with_derivative(jnp.abs, lambda x, moved: _sign(x) * moved)
_maximum: Final = _with_derivative(jnp.maximum, lambda x, y, of_x, of_y: jnp.where(x >= y, of_x, of_y))
_minimum: Final = _with_derivative(jnp.minimum, lambda x, y, of_x, of_y: jnp.where(x <= y, of_x, of_y))
_times_no_nan: Final = _with_derivative(_times, _times_jvp)
_power: Final = _with_derivative(jnp.power, _power_jvp)


def sign(x: jax.Array) -> jax.Array:
    """Computes the sign of each element; the gradient is zeros instead of None, as in TensorFlow."""
    result: jax.Array = _sign(x) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else jnp.sign(x)
    return result


def absolute(x: jax.Array) -> jax.Array:
    """Computes the absolute value; its derivative at 0 is 0."""
    result: jax.Array = _absolute(x) if _is_real(x) else jnp.abs(x)
    return result


def maximum(x: jax.Array, y: jax.Array) -> jax.Array:
    """Computes the elementwise maximum; where both are equal, the gradient goes to `x`."""
    return _of_kind(_maximum, jnp.maximum, x, y)


def minimum(x: jax.Array, y: jax.Array) -> jax.Array:
    """Computes the elementwise minimum; where both are equal, the gradient goes to `x`."""
    return _of_kind(_minimum, jnp.minimum, x, y)


def multiply_no_nan(x: jax.Array, y: jax.Array) -> jax.Array:
    """Computes ``x * y``, and 0 where y is 0; there, the derivative with respect to y is x, or 0 if x is not finite."""
    return _of_kind(_times_no_nan, _times, x, y)


def power(x: jax.Array | float, y: jax.Array) -> jax.Array:
    """Computes x to the power of y; its derivative with respect to y is 0 where x is 0 or less."""
    if isinstance(x, (int, float)) and isinstance(y, jax.Array) and _is_real(y):
        x = jnp.asarray(x, y.dtype)
    both = isinstance(x, jax.Array) and isinstance(y, jax.Array) and _is_real(x, y)
    result: jax.Array = _power(x, y) if both else jnp.power(x, y)
    return result


def leaky_relu(features: jax.Array, negative_slope: jax.Array) -> jax.Array:
    """Computes the leaky rectified linear activation; its derivative at 0 is `negative_slope`."""
    return jnp.where(features > 0, features, negative_slope * features)


def selu(features: jax.Array) -> jax.Array:
    """Computes the scaled exponential linear activation; its derivative at 0 is the derivative from the right."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    below = jnp.where(features >= 0, 0.0, features)
    return scale * jnp.where(features >= 0, features, alpha * jnp.expm1(below))
