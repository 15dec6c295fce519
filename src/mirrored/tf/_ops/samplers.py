"""Functions that draw samples of distributions with a JAX key, for `tf.random` and `Generator`.

The numbers come from JAX (threefry): the same seed gives another sequence than in TensorFlow.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import static_ints
from mirrored.tf._tensors import as_tensor
from mirrored.values.index_checks import values_now


def _shape(shape: StaticInts, called: str) -> tuple[int, ...]:
    return static_ints(shape, called=f"tf.random.{called}", argument="shape")


def drawing_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype in which to draw: float32 instead of 16-bit floats, whose few values would bias the mean."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def unit_normal(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
    """Returns samples of the standard normal distribution, drawn with a JAX key."""
    return jax.random.normal(key, shape, drawing_dtype(dtype)).astype(dtype)


def unit_truncated_normal(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
    """Returns samples of the standard normal distribution truncated at -2 and 2, drawn with a JAX key."""
    return jax.random.truncated_normal(key, -2.0, 2.0, shape, drawing_dtype(dtype)).astype(dtype)


def normal(
    key: jax.Array, shape: StaticInts, mean: Operand = 0.0, stddev: Operand = 1.0, dtype: DTypeLike = "float32"
) -> jax.Array:
    """Returns samples of a normal distribution, drawn with a JAX key."""
    return _scaled(unit_normal(key, _shape(shape, "normal"), array_dtype(dtype)), mean, stddev)


def truncated_normal(
    key: jax.Array, shape: StaticInts, mean: Operand = 0.0, stddev: Operand = 1.0, dtype: DTypeLike = "float32"
) -> jax.Array:
    """Returns samples of a normal distribution truncated at two standard deviations, drawn with a JAX key."""
    return _scaled(unit_truncated_normal(key, _shape(shape, "truncated_normal"), array_dtype(dtype)), mean, stddev)


def _scaled(unit: jax.Array, mean: Operand, stddev: Operand) -> jax.Array:
    return unit * as_tensor(stddev).astype(unit.dtype) + as_tensor(mean).astype(unit.dtype)


def uniform(
    key: jax.Array,
    shape: StaticInts,
    minval: Operand | None = 0,
    maxval: Operand | None = None,
    dtype: DTypeLike = "float32",
) -> jax.Array:
    """Returns samples of a uniform distribution over [minval, maxval), drawn with a JAX key.

    Integers require both bounds, or None for both, which covers all values of the dtype.
    """
    wanted = array_dtype(dtype)
    size = _shape(shape, "uniform")
    if wanted.kind in "iu":
        if minval is None and maxval is None:
            return full_int(key, shape, dtype)
        if minval is None or maxval is None:
            raise ValueError(
                f"Must specify maxval for integer dtype {wanted.name}: minval and maxval must be both `None` or both "
                f"non-`None`; got minval={minval} and maxval={maxval}"
            )
        _require_whole("minval", minval)
        _require_whole("maxval", maxval)
        least, most = as_tensor(minval), as_tensor(maxval)
        if 0 not in size:  # TensorFlow does not compare the bounds of an empty result, either
            _check_bounds(least, most)
        return jax.random.randint(key, size, least, most, wanted)
    if minval is None:
        raise ValueError(f"minval must be a number for dtype {wanted.name}; got None")
    low = as_tensor(minval).astype(wanted)
    high = as_tensor(1.0 if maxval is None else maxval).astype(wanted)
    return low + (high - low) * jax.random.uniform(key, size, wanted)


def _require_whole(argument: str, bound: Operand) -> None:
    """Raises an error if a bound of random integers is fractional; checks only Python numbers and eager CPU arrays.

    JAX would truncate the bound: 2.9 would exclude 2.
    """
    found = bound if isinstance(bound, (int, float)) else values_now(as_tensor(bound))
    if found is None or np.all(np.asarray(found) % 1 == 0):
        return
    raise InvalidArgumentError.of(
        "tf.random.uniform",
        found=f"`{argument}` is {found}",
        rule="the bounds of random integers must be integers",
        remedy="round the bound, for instance with math.ceil",
    )


def _check_bounds(least: jax.Array, most: jax.Array) -> None:
    """Raises an error unless ``least < most``, the bounds of random integers; checks only eager CPU arrays.

    JAX would return the lower bound.
    """
    bounds = values_now(least), values_now(most)
    if bounds[0] is None or bounds[1] is None or (bounds[0] < bounds[1]).all():
        return
    raise InvalidArgumentError.of(
        "tf.random.uniform",
        found=f"minval={bounds[0].tolist()} and maxval={bounds[1].tolist()} were passed",
        rule="minval must be less than maxval: integers are at least minval, and less than maxval",
        remedy="pass a larger maxval",
    )


def full_int(key: jax.Array, shape: StaticInts, dtype: DTypeLike = "int32") -> jax.Array:
    """Returns random integers, uniform over all values of the dtype, drawn with a JAX key."""
    return jax.random.bits(key, _shape(shape, "uniform_full_int"), _unsigned(dtype)).view(array_dtype(dtype))


def _unsigned(dtype: DTypeLike) -> Any:
    return {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[array_dtype(dtype).itemsize]


def categorical(key: jax.Array, logits: Operand, num_samples: SupportsIndex, dtype: DTypeLike = "int64") -> jax.Array:
    """Returns class indices sampled from log-probabilities (logits) with a JAX key.

    From [batch, classes], the result is [batch, num_samples].
    """
    scores = as_tensor(logits)
    (count,) = static_ints(num_samples, called="tf.random.categorical", argument="num_samples")
    drawn = jax.random.categorical(key, scores[:, None, :], axis=-1, shape=(scores.shape[0], count))
    return drawn.astype(array_dtype(dtype))


def shuffle(key: jax.Array, value: Operand) -> jax.Array:
    """Permutes the slices of a tensor along its first axis with a JAX key."""
    whole = as_tensor(value)
    return jax.random.permutation(key, whole, axis=0) if whole.ndim else whole  # JAX permutes the range of a number


def gamma(
    key: jax.Array, shape: StaticInts, alpha: Operand, beta: Operand | None = None, dtype: DTypeLike = "float32"
) -> jax.Array:
    """Returns samples of a Gamma distribution, drawn with a JAX key.

    `shape` is that of the result, and includes that of the parameters.
    """
    wanted = array_dtype(dtype)
    wide = drawing_dtype(wanted)
    drawn = jax.random.gamma(key, as_tensor(alpha).astype(wide), _shape(shape, "gamma"), wide).astype(wanted)
    return drawn if beta is None else drawn / as_tensor(beta).astype(wanted)


def poisson(key: jax.Array, shape: StaticInts, lam: Operand, dtype: DTypeLike = "float32") -> jax.Array:
    """Returns samples of a Poisson distribution, drawn with a JAX key.

    `shape` is that of the result, and includes that of the parameter.
    """
    return jax.random.poisson(key, as_tensor(lam), _shape(shape, "poisson")).astype(array_dtype(dtype))


def binomial(
    key: jax.Array, shape: StaticInts, counts: Operand, probs: Operand, dtype: DTypeLike = "int32"
) -> jax.Array:
    """Returns samples of a binomial distribution, drawn with a JAX key.

    `shape` is that of the result, and includes that of the parameters.
    """
    trials, chance = as_tensor(counts).astype(jnp.float32), as_tensor(probs).astype(jnp.float32)
    return jax.random.binomial(key, trials, chance, shape=_shape(shape, "binomial")).astype(array_dtype(dtype))
