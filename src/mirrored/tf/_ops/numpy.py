"""`tf.experimental.numpy`: NumPy's functions for tensors, which are those of `jax.numpy`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, ShapeLike
from mirrored.tf._errors import UnimplementedError
from mirrored.tf._ops.generator import set_seed
from mirrored.tf._ops.random import normal, uniform
from mirrored.tf._tensors import as_tensor


class _NumPy(types.ModuleType):
    """The module `tf.experimental.numpy`: the functions of `jax.numpy`, and those that only TensorFlow has."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(jnp, name)
        return _sized(name, function, _SIZES[name]) if name in _SIZES else function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(jnp)})


_SIZES: Final = {
    **dict.fromkeys(
        (
            "argwhere", "compress", "extract", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d",
            "union1d", "unique", "where",
        ),
        "size=n",
    ),
    "bincount": "length=n",
    "repeat": "total_repeat_length=n",
}  # fmt: skip
"""The functions whose result has a shape that depends on values, and the argument that states its size."""


def _sized(name: str, function: Callable[..., Any], size: str) -> Callable[..., Any]:
    """Wraps a function of `_SIZES` to raise the error of such operations of `mirrored.tf` in compiled code."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except jax.errors.ConcretizationTypeError as error:
            raise UnimplementedError.of(
                f"tf.experimental.numpy.{name}",
                found="the result depends on values that are computed in compiled code (tf.function, a compiled run)",
                rule="these values determine the shape of the result, and compiled code has fixed shapes",
                remedy=f"pass {size} to {name}, with the size n; or call it outside of compiled code",
            ) from error

    return call


def experimental_enable_numpy_behavior(prefer_float32: bool = False, dtype_conversion_mode: str = "legacy") -> None:
    """Does nothing: tensors always have NumPy's methods, and dtypes promote as in JAX."""


def _randn(*shape: int) -> jax.Array:
    """Returns samples from the standard normal distribution."""
    return normal(shape)


def _rand(*shape: int) -> jax.Array:
    """Returns uniform samples in [0, 1)."""
    return uniform(shape)


def _randint(
    low: int, high: int | None = None, size: ShapeLike | None = None, dtype: DTypeLike = np.int32
) -> jax.Array:
    """Returns uniform integers in [low, high), or in [0, low)."""
    first, last = (0, low) if high is None else (low, high)
    shape = () if size is None else tuple(np.atleast_1d(size).tolist())
    return jnp.asarray(uniform(shape, first, last, dtype="int32"), dtype)


def _between(low: Operand = 0.0, high: Operand = 1.0, size: ShapeLike | None = None) -> jax.Array:
    """Returns uniform samples in [low, high)."""
    shape = jnp.broadcast_shapes(np.shape(low), np.shape(high)) if size is None else tuple(np.atleast_1d(size).tolist())
    return as_tensor(low) + (as_tensor(high) - as_tensor(low)) * uniform(shape)


def _random(size: ShapeLike | None = None) -> jax.Array:
    """Returns uniform samples in [0, 1)."""
    return _between(size=() if size is None else size)


def _standard_normal(size: ShapeLike | None = None) -> jax.Array:
    """Returns samples from the standard normal distribution."""
    return normal(() if size is None else tuple(np.atleast_1d(size).tolist()))


def _made(name: str, kind: type[types.ModuleType], members: dict[str, Any]) -> types.ModuleType:
    module = kind(name, "TensorFlow's `tf.experimental.numpy` on `jax.numpy`.")
    vars(module).update(members)
    return module


_ROOT: Final = "mirrored.tf.experimental.numpy"
_RANDOM: Final = {
    "rand": _rand,
    "randint": _randint,
    "randn": _randn,
    "random": _random,
    "seed": set_seed,
    "standard_normal": _standard_normal,
    "uniform": _between,
}
_MEMBERS: Final = {
    "experimental_enable_numpy_behavior": experimental_enable_numpy_behavior,
    "random": _made(f"{_ROOT}.random", types.ModuleType, _RANDOM),
}
NAMES: dict[str, Any] = {"experimental.numpy": _made(_ROOT, _NumPy, _MEMBERS)}
