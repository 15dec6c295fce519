"""`tf.math`: elementwise operations such as `cast` and `divide_no_nan`.

The module `reductions` has reductions and cumulative sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax

from mirrored._typing import DTypeLike, Operand
from mirrored.tf._data.host_arrays import is_text, texts_equal
from mirrored.tf._dtypes import array_dtype, as_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._narrowed import requested_as
from mirrored.tf._ops import kinks
from mirrored.tf._ops.real_numbers import of_reals, refuse_complex
from mirrored.tf._table import Common, op, reported, rows, tensors
from mirrored.tf._tensors import as_tensor, operands
from mirrored.values.index_checks import values_now


def _shift(shift: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns a bit-shift function that limits shift amounts to the integer's bit width minus 1, as TensorFlow does."""

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        """Shifts the bits of integers, elementwise."""
        return shift(x, jnp.clip(y, 0, 8 * x.dtype.itemsize - 1))

    return run


def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    """Computes ``x ** y`` elementwise; raises an error for negative exponents of integers in eager code on a CPU."""
    if jnp.issubdtype(jnp.result_type(x, y), jnp.signedinteger):
        known = values_now(as_tensor(y))
        if known is not None and (known < 0).any():
            raise InvalidArgumentError.of(
                "tf.math.pow",
                found=f"the exponent {np.array2string(known, threshold=10)} of integers",
                rule="integers to negative integer powers are not allowed: they are fractions",
                remedy="convert the base with tf.cast(x, tf.float32)",
            )
    return kinks.power(x, y)


def _in_float32(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that computes floats of 16 bits in float32, as its coefficients overflow in float16."""

    @functools.wraps(function)
    def run(x: jax.Array) -> jax.Array:
        is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 2
        return function(x.astype(jnp.float32)).astype(x.dtype) if is_narrow else function(x)

    return run


@jax.custom_jvp
def _spence(x: jax.Array) -> jax.Array:
    """Computes Spence's function elementwise: the integral of ``log(t) / (1 - t)`` from 1 to x."""
    return special.spence(x)  # type: ignore[no-any-return]


@_spence.defjvp
def _spence_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    # The derivative of JAX's approximation is NaN between 1 and 2, and 0 at 1.
    (x,), (tangent,) = primals, tangents
    is_one = x == 1
    return _spence(x), tangent * jnp.where(is_one, -1, jnp.log(x) / jnp.where(is_one, 1, 1 - x))


def _floordiv(x: jax.Array, y: jax.Array) -> jax.Array:
    """Divides elementwise, and rounds down; for floats, rounds the quotient ``x / y``, so that 1.0 // 0.1 is 10."""
    if jnp.issubdtype(jnp.result_type(x, y), jnp.floating):
        return jnp.floor(jnp.true_divide(x, y))
    return jnp.floor_divide(x, y)


rows(
    {
        "math.abs abs": ("x", kinks.absolute),
        "math.acos acos": ("x", jnp.arccos),
        "math.acosh acosh": ("x", jnp.arccosh),
        "math.add add": ("x y", jnp.add),
        "math.angle": ("input", jnp.angle),
        "math.asin asin": ("x", jnp.arcsin),
        "math.asinh asinh": ("x", jnp.arcsinh),
        "math.atan atan": ("x", jnp.arctan),
        "math.atan2 atan2": ("y x", jnp.arctan2),
        "math.atanh atanh": ("x", jnp.arctanh),
        "math.bessel_i0 math.special.bessel_i0": ("x", special.i0),
        "math.bessel_i0e math.special.bessel_i0e": ("x", special.i0e),
        "math.bessel_i1 math.special.bessel_i1": ("x", special.i1),
        "math.bessel_i1e math.special.bessel_i1e": ("x", special.i1e),
        "math.betainc": ("a b x", special.betainc),
        "math.ceil": ("x", jnp.ceil),
        "math.conj": ("x", jnp.conj),
        "math.cos cos": ("x", jnp.cos),
        "math.cosh cosh": ("x", jnp.cosh),
        "math.digamma": ("x", special.digamma),
        "math.divide divide math.truediv truediv realdiv": ("x y", jnp.true_divide),
        "math.erf": ("x", special.erf),
        "math.erfc": ("x", special.erfc),
        "math.erfinv": ("x", special.erfinv),
        "math.exp exp": ("x", jnp.exp),
        "math.expm1": ("x", jnp.expm1),
        "math.floor floor": ("x", jnp.floor),
        "math.floordiv": ("x y", _floordiv),
        "math.floormod math.mod": ("x y", jnp.mod),
        "math.greater greater": ("x y", of_reals(jnp.greater)),
        "math.greater_equal greater_equal": ("x y", of_reals(jnp.greater_equal)),
        "math.igamma": ("a x", special.gammainc),
        "math.igammac": ("a x", special.gammaincc),
        "math.imag": ("input", jnp.imag),
        "math.is_finite": ("x", jnp.isfinite),
        "math.is_inf": ("x", jnp.isinf),
        "math.is_nan": ("x", jnp.isnan),
        "math.less less": ("x y", of_reals(jnp.less)),
        "math.less_equal less_equal": ("x y", of_reals(jnp.less_equal)),
        "math.lgamma": ("x", special.gammaln),
        "math.log": ("x", jnp.log),
        "math.log1p": ("x", jnp.log1p),
        "math.logical_and logical_and": ("x y", jnp.logical_and),
        "math.logical_not logical_not": ("x", jnp.logical_not),
        "math.logical_or logical_or": ("x y", jnp.logical_or),
        "math.logical_xor": ("x y", jnp.logical_xor),
        "math.maximum maximum": ("x y", of_reals(kinks.maximum)),
        "math.minimum minimum": ("x y", of_reals(kinks.minimum)),
        "math.multiply multiply": ("x y", jnp.multiply),
        "math.ndtri": ("x", special.ndtri),
        "math.negative negative": ("x", jnp.negative),
        "math.nextafter": ("x1 x2", jnp.nextafter),
        "math.pow pow": ("x y", _power),
        "math.real": ("input", jnp.real),
        "math.reciprocal": ("x", jnp.reciprocal),
        "math.rint": ("x", of_reals(jnp.rint)),
        "math.round round": ("x", of_reals(jnp.round)),
        "math.rsqrt": ("x", lax.rsqrt),
        "math.scalar_mul scalar_mul": ("scalar x", jnp.multiply),
        "math.sign sign": ("x", kinks.sign),
        "math.sin sin": ("x", jnp.sin),
        "math.sinh sinh": ("x", jnp.sinh),
        "math.special.expint": ("x", _in_float32(special.expi)),
        "math.special.spence": ("x", _in_float32(_spence)),
        "math.sqrt sqrt": ("x", jnp.sqrt),
        "math.square square": ("x", jnp.square),
        "math.subtract subtract": ("x y", jnp.subtract),
        "math.tan tan": ("x", jnp.tan),
        "math.tanh tanh nn.tanh": ("x", jnp.tanh),
        "math.zeta": ("x q", special.zeta),
        "bitwise.bitwise_and": ("x y", jnp.bitwise_and),
        "bitwise.bitwise_or": ("x y", jnp.bitwise_or),
        "bitwise.bitwise_xor": ("x y", jnp.bitwise_xor),
        "bitwise.invert": ("x", jnp.bitwise_not),
        "bitwise.left_shift": ("x y", _shift(jnp.left_shift)),
        "bitwise.right_shift": ("x y", _shift(jnp.right_shift)),
        "truncatemod": ("x y", jnp.fmod),
    },
    elementwise=True,
)


@op("math.equal equal", on_host=True)
def equal(x: Operand, y: Operand) -> jax.Array:
    """Compares two tensors elementwise for equality; strings are compared on the host."""
    if is_text(x) or is_text(y):
        return texts_equal(x, y)  # type: ignore[no-any-return]
    sides = operands([x, y])
    with reported("tf.equal", sides):
        return jnp.equal(*sides)


@op("math.not_equal not_equal", on_host=True)
def not_equal(x: Operand, y: Operand) -> jax.Array:
    """Compares two tensors elementwise for inequality; strings are compared on the host."""
    if is_text(x) or is_text(y):
        return ~texts_equal(x, y)  # type: ignore[no-any-return]
    sides = operands([x, y])
    with reported("tf.not_equal", sides):
        return jnp.not_equal(*sides)


@op("math.add_n add_n math.accumulate_n")
def add_n(inputs: Operand) -> jax.Array:
    """Returns the elementwise sum of a list of tensors of one shape.

    Raises:
        ValueError: The list is empty.
    """
    values = tensors(*inputs) if isinstance(inputs, (list, tuple)) else [as_tensor(inputs)]
    if not values:
        raise ValueError(
            "Inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype and shape."
        )
    total = values[0]
    for one in values[1:]:
        with reported("tf.add_n", [total, one]):
            if one.shape != total.shape:
                raise ValueError("the tensors must have one shape")
            total = total + one
    return total if len(values) > 1 else jnp.copy(total)


@op("math.divide_no_nan")
def divide_no_nan(x: Common, y: Common) -> jax.Array:
    """Computes ``x / y`` elementwise, with result and gradients 0 where y is 0."""
    zero = y == 0
    return jnp.where(zero, 0, x / jnp.where(zero, 1, y))


@op("math.multiply_no_nan")
def multiply_no_nan(x: Common, y: Common) -> jax.Array:
    """Computes ``x * y`` elementwise, and 0 where y is 0, even if x is infinite or NaN."""
    return kinks.multiply_no_nan(x, y)


@op("math.reciprocal_no_nan")
def reciprocal_no_nan(x: jax.Array) -> jax.Array:
    """Computes ``1 / x`` elementwise, and 0 where x is 0."""
    return divide_no_nan(jnp.ones_like(x), x)


@op("math.xdivy")
def xdivy(x: Common, y: Common) -> jax.Array:
    """Computes ``x / y`` elementwise, and 0 where x is 0, even if y is 0."""
    zero = x == 0
    return jnp.where(zero, 0, x / jnp.where(zero, 1, y))


@op("math.xlogy")
def xlogy(x: Common, y: Common) -> jax.Array:
    """Computes ``x * log(y)`` elementwise, with result and gradients 0 where x is 0, for every y."""
    zero = x == 0
    return jnp.where(zero, 0, x * jnp.log(jnp.where(zero, 1, y)))


@op("math.xlog1py")
def xlog1py(x: Common, y: Common) -> jax.Array:
    """Computes ``x * log(1 + y)`` elementwise, with result and gradients 0 where x is 0, for every y."""
    zero = x == 0
    return jnp.where(zero, 0, x * jnp.log1p(jnp.where(zero, 0, y)))


def squared_magnitude(x: jax.Array) -> jax.Array:
    """Computes ``|x|²`` elementwise, a real tensor; it has a derivative where the absolute value has none, at 0."""
    return jnp.real(x) ** 2 + jnp.imag(x) ** 2 if jnp.iscomplexobj(x) else jnp.square(x)


@op("math.squared_difference")
def squared_difference(x: Common, y: Common) -> jax.Array:
    """Computes ``(x - y)²`` elementwise; for complex tensors, ``conj(x - y) * (x - y)``."""
    difference = x - y
    return jnp.conj(difference) * difference if jnp.iscomplexobj(difference) else jnp.square(difference)


@op("truncatediv")
def truncatediv(x: Common, y: Common) -> jax.Array:
    """Divides elementwise, and rounds the result towards zero."""
    quotient = lax.div(*jnp.broadcast_arrays(x, y))
    return quotient if quotient.dtype.kind in "iu" else jnp.trunc(quotient)


@op("math.erfcinv")
def erfcinv(x: jax.Array) -> jax.Array:
    """Computes the inverse of the complementary error function `erfc`, elementwise."""
    return -special.ndtri(x * 0.5) * jnp.sqrt(0.5).astype(x.dtype)


@op("math.polygamma")
def polygamma(a: jax.Array, x: jax.Array) -> jax.Array:
    """Computes the polygamma function elementwise: the derivative of order a of `digamma` at x."""
    return special.polygamma(a.astype(jnp.int32), x)


@op("math.lbeta")
def lbeta(x: jax.Array) -> jax.Array:
    """Computes the logarithm of the multivariate Beta function, ``ln |Beta(x)|``, along the last axis."""
    return jnp.sum(special.gammaln(x), axis=-1) - special.gammaln(jnp.sum(x, axis=-1))


@op("math.polyval")
def polyval(coeffs: Iterable[Operand], x: jax.Array) -> jax.Array:
    """Evaluates a polynomial at x, given its coefficients from the highest power down."""
    # Not `jnp.polyval`: coefficients of several shapes do not stack.
    # It begins with the first coefficient: 0 * x would be NaN for an infinite x.
    first, *rest = [*coeffs] or [0]
    start = as_tensor(first) + jnp.zeros_like(x)
    return functools.reduce(lambda total, one: total * x + as_tensor(one), rest, start)


@op("complex dtypes.complex")
def complex_(real: Common, imag: Common) -> jax.Array:
    """Creates a complex tensor from a real and an imaginary part."""
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@op("cast dtypes.cast", on_host=True)
def cast(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Converts a tensor to another dtype: truncates floats to integers, drops imaginary parts."""
    wanted = array_dtype(dtype)
    return requested_as(dtype, (jnp.real(x) if x.dtype.kind == "c" and wanted.kind != "c" else x).astype(wanted), x)


@op("dtypes.saturate_cast saturate_cast")
def saturate_cast(value: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Converts a tensor to another dtype, and clips values to the range of that dtype."""
    wanted, source = as_dtype(dtype), as_dtype(value.dtype)
    low, high = max(float(source.min), float(wanted.min)), min(float(source.max), float(wanted.max))
    if source.is_integer:
        least, most = max(int(source.min), int(wanted.min)), min(int(source.max), int(wanted.max))
        return jnp.clip(value, least, most).astype(array_dtype(wanted))
    limits = [np.asarray(limit, value.dtype) for limit in (low, high)]
    if wanted.is_integer:  # the next smaller float, as in TensorFlow, because no float32 equals int32's maximum
        limits = [
            np.nextafter(one, np.zeros_like(one)) if abs(int(one)) > abs(int(limit)) else one
            for one, limit in zip(limits, (wanted.min, wanted.max), strict=True)
        ]
    return jnp.clip(value, *limits).astype(array_dtype(wanted))


@op("bitcast")
def bitcast(input: jax.Array, type: DTypeLike) -> jax.Array:
    """Reinterprets the bits of a tensor's elements as another dtype."""
    return lax.bitcast_convert_type(input, array_dtype(type))


@op("math.invert_permutation")
def invert_permutation(x: jax.Array) -> jax.Array:
    """Computes the inverse of a permutation, given as a vector of indices.

    Raises:
        InvalidArgumentError: It is not a permutation, in eager code on a CPU.
    """
    known = values_now(x)
    if known is not None and not np.array_equal(np.sort(known), np.arange(known.size)):
        raise InvalidArgumentError.of(
            "tf.math.invert_permutation",
            found=f"the vector {np.array2string(known, threshold=10)}",
            rule="a permutation of n elements must contain each index from 0 to n - 1 once",
            remedy="pass a permutation, such as the result of tf.argsort",
        )
    return jnp.argsort(x).astype(x.dtype)


@op("math.is_non_decreasing")
def is_non_decreasing(x: jax.Array) -> jax.Array:
    """Returns whether each element of a tensor is at least as large as the element before it."""
    refuse_complex(x)
    flat = x.reshape(-1)
    return jnp.all(flat[1:] >= flat[:-1])


@op("math.is_strictly_increasing")
def is_strictly_increasing(x: jax.Array) -> jax.Array:
    """Returns whether each element of a tensor is greater than the element before it."""
    refuse_complex(x)
    flat = x.reshape(-1)
    return jnp.all(flat[1:] > flat[:-1])
