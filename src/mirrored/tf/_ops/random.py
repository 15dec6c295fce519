"""`tf.random`: functions that draw random numbers from a global state, and stateless functions with a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops import samplers
from mirrored.tf._ops.generator import (
    Generator,
    get_global_generator,
    key_from_seed,
    next_key,
    set_global_generator,
    set_seed,
)
from mirrored.tf._ops.random_streams import initial_state
from mirrored.tf._table import Ints, op
from mirrored.tf._tensors import as_tensor

op("random.Generator random.experimental.Generator")(Generator)
op("random.set_seed", named=False)(set_seed)
op("random.get_global_generator random.experimental.get_global_generator", named=False)(get_global_generator)
op("random.set_global_generator random.experimental.set_global_generator", named=False)(set_global_generator)


@op("random.normal")
def normal(
    shape: StaticInts, mean: Operand = 0.0, stddev: Operand = 1.0, dtype: DTypeLike = "float32", seed: int | None = None
) -> jax.Array:
    """Returns random values from a normal distribution, drawn from the global random state."""
    return samplers.normal(next_key(seed), shape, mean, stddev, dtype)


@op("random.truncated_normal")
def truncated_normal(
    shape: StaticInts, mean: Operand = 0.0, stddev: Operand = 1.0, dtype: DTypeLike = "float32", seed: int | None = None
) -> jax.Array:
    """Returns random values from a normal distribution truncated at two standard deviations."""
    return samplers.truncated_normal(next_key(seed), shape, mean, stddev, dtype)


@op("random.uniform")
def uniform(
    shape: StaticInts,
    minval: Operand = 0,
    maxval: Operand | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
) -> jax.Array:
    """Returns random values from a uniform distribution over [minval, maxval)."""
    return samplers.uniform(next_key(seed), shape, minval, maxval, dtype)


@op("random.shuffle")
def shuffle(value: Operand, seed: int | None = None) -> jax.Array:
    """Randomly permutes the slices of a tensor along its first axis."""
    return samplers.shuffle(next_key(seed), value)


@op("random.categorical")
def categorical(
    logits: Operand, num_samples: SupportsIndex, dtype: DTypeLike = "int64", seed: int | None = None
) -> jax.Array:
    """Draws class indices from log-probabilities (logits) [batch, classes].

    The result is [batch, num_samples].
    """
    return samplers.categorical(next_key(seed), logits, num_samples, dtype)


@op("random.gamma")
def gamma(
    shape: Ints, alpha: jax.Array, beta: jax.Array | None = None, dtype: DTypeLike = "float32", seed: int | None = None
) -> jax.Array:
    """Returns random values from Gamma distributions: a tensor of the given shape for each alpha and beta."""
    each = alpha.shape if beta is None else jnp.broadcast_shapes(alpha.shape, beta.shape)
    return samplers.gamma(next_key(seed), (*shape, *each), alpha, beta, dtype)


@op("random.poisson")
def poisson(shape: Ints, lam: jax.Array, dtype: DTypeLike = "float32", seed: int | None = None) -> jax.Array:
    """Returns random values from Poisson distributions: a tensor of the given shape for each rate."""
    return samplers.poisson(next_key(seed), (*shape, *lam.shape), lam, dtype)


@op("random.stateless_normal")
def stateless_normal(
    shape: StaticInts,
    seed: Operand,
    mean: Operand = 0.0,
    stddev: Operand = 1.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> jax.Array:
    """Draws random values from a normal distribution; the result depends only on `seed`."""
    return samplers.normal(key_from_seed(seed), shape, mean, stddev, dtype)


@op("random.stateless_truncated_normal")
def stateless_truncated_normal(
    shape: StaticInts,
    seed: Operand,
    mean: Operand = 0.0,
    stddev: Operand = 1.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> jax.Array:
    """Draws from a normal distribution truncated at two standard deviations; the result depends only on `seed`."""
    return samplers.truncated_normal(key_from_seed(seed), shape, mean, stddev, dtype)


@op("random.stateless_uniform")
def stateless_uniform(
    shape: StaticInts,
    seed: Operand,
    minval: Operand | None = 0,
    maxval: Operand | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> jax.Array:
    """Draws random values from a uniform distribution; the result depends only on `seed`.

    Integers without bounds cover the whole range of the dtype.
    """
    return samplers.uniform(key_from_seed(seed), shape, minval, maxval, dtype)


@op("random.stateless_categorical")
def stateless_categorical(
    logits: Operand, num_samples: SupportsIndex, seed: Operand, dtype: DTypeLike = "int64"
) -> jax.Array:
    """Draws class indices from log-probabilities (logits); the result depends only on `seed`."""
    return samplers.categorical(key_from_seed(seed), logits, num_samples, dtype)


@op("random.stateless_gamma")
def stateless_gamma(
    shape: StaticInts, seed: Operand, alpha: Operand, beta: Operand | None = None, dtype: DTypeLike = "float32"
) -> jax.Array:
    """Draws random values from a Gamma distribution; the result depends only on `seed`.

    `shape` is the exact shape of the result.
    """
    return samplers.gamma(key_from_seed(seed), shape, alpha, beta, dtype)


@op("random.stateless_poisson")
def stateless_poisson(shape: StaticInts, seed: Operand, lam: Operand, dtype: DTypeLike = "int32") -> jax.Array:
    """Draws random values from a Poisson distribution; the result depends only on `seed`.

    `shape` is the exact shape of the result.
    """
    return samplers.poisson(key_from_seed(seed), shape, lam, dtype)


@op("random.stateless_binomial")
def stateless_binomial(
    shape: StaticInts, seed: Operand, counts: Operand, probs: Operand, output_dtype: DTypeLike = "int32"
) -> jax.Array:
    """Draws random values from a binomial distribution; the result depends only on `seed`.

    `shape` is the exact shape of the result.
    """
    return samplers.binomial(key_from_seed(seed), shape, counts, probs, output_dtype)


@op("random.experimental.stateless_shuffle random.stateless_shuffle")
def stateless_shuffle(value: Operand, seed: Operand, alg: object = "auto_select") -> jax.Array:
    """Permutes the slices of a tensor along its first axis, in an order that depends only on `seed`."""
    return samplers.shuffle(key_from_seed(seed), value)


@op("random.split random.experimental.stateless_split")
def split(seed: Operand, num: int = 2, alg: object = "auto_select") -> jax.Array:
    """Derives `num` new seeds, ``int32[num, 2]``, for `stateless_*` functions from one seed."""
    words = jax.random.key_data(jax.random.split(key_from_seed(seed), num))
    return words.view(jnp.int32)


@op("random.fold_in random.experimental.stateless_fold_in")
def fold_in(seed: Operand, data: Operand, alg: object = "auto_select") -> jax.Array:
    """Derives a new seed for `stateless_*` functions from a seed and a number."""
    words = jax.random.key_data(jax.random.fold_in(key_from_seed(seed), as_tensor(data).astype(jnp.uint32)))
    return words.view(jnp.int32)


@op("random.create_rng_state", named=False)
def create_rng_state(seed: int, alg: object = "auto_select") -> jax.Array:
    """Returns the state of a new generator with a given seed, for `Generator.from_state`."""
    return jnp.asarray(initial_state(int(seed)))


def _dropped(
    value: jax.Array, rate: Operand, noise_shape: Iterable[SupportsIndex | None] | None, key: Callable[[], jax.Array]
) -> jax.Array:
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise InvalidArgumentError.of(
            "tf.nn.dropout",
            found=f"`x` has the dtype {value.dtype}",
            rule="`x` must be a tensor of floats: the elements that are kept are scaled",
            remedy="convert it with tf.cast(x, tf.float32)",
        )
    if isinstance(rate, (int, float, np.integer, np.floating)) and not 0 <= rate < 1:
        raise ValueError(f"`rate` must be a scalar tensor or a float in the range [0, 1). Received: rate={rate}")
    if isinstance(rate, (int, float)) and rate == 0:
        return value
    shape = value.shape
    if noise_shape is not None:
        shape = tuple(size if one is None else int(one) for one, size in zip(noise_shape, shape, strict=True))
    keep = jax.random.uniform(key(), shape, jnp.float32) >= rate
    return jnp.where(keep, value / (1 - as_tensor(rate).astype(value.dtype)), jnp.zeros((), value.dtype))


@op("nn.dropout")
def dropout(
    x: Operand, rate: Operand, noise_shape: Iterable[SupportsIndex | None] | None = None, seed: int | None = None
) -> jax.Array:
    """Sets elements to zero at random, with probability `rate`, and scales the others by ``1 / (1 - rate)``."""
    return _dropped(as_tensor(x), rate, noise_shape, lambda: next_key(seed))


@op("nn.experimental.stateless_dropout")
def stateless_dropout(
    x: Operand,
    rate: Operand,
    seed: Operand,
    rng_alg: str = "auto_select",
    noise_shape: Iterable[SupportsIndex | None] | None = None,
) -> jax.Array:
    """Sets elements to zero at random like `dropout`; the choice of elements depends only on `seed`."""
    return _dropped(as_tensor(x), rate, noise_shape, lambda: key_from_seed(seed))
