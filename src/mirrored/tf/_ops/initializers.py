"""`tf.initializers`: objects that create the initial values of variables from a shape."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.generator import next_key
from mirrored.tf._ops.random_streams import initial_state, key_of
from mirrored.tf._ops.samplers import drawing_dtype, unit_normal, unit_truncated_normal
from mirrored.tf._static import static_ints
from mirrored.tf._table import register
from mirrored.tf._tensors import as_tensor


class Initializer(abc.ABC):
    """Base class of initializers, which create initial values: ``initializer(shape, dtype=tf.float32)``.

    A random initializer with a seed is stateless: all its calls with one shape return the same values, whatever the
    global seed is.
    """

    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> jax.Array:
        """Returns a tensor of initial values with the given shape and dtype.

        Args:
            shape: The shape.
            dtype: The dtype; float32 by default.
            partition_shape: The shape of a part of the tensor, which is then returned instead of the whole.
            partition_offset: Where the part begins in each dimension; zeros by default.

        Raises:
            InvalidArgumentError: The part is not inside the tensor.
        """
        called = f"tf.{type(self).__name__}"
        sizes = static_ints(shape, called=called, argument="shape")
        made = self._made(sizes, array_dtype("float32" if dtype is None else dtype))
        if partition_shape is None and partition_offset is None:
            return made
        part, begins = sizes, (0,) * len(sizes)
        if partition_shape is not None:
            part = static_ints(partition_shape, called=called, argument="partition_shape")
        if partition_offset is not None:
            begins = static_ints(partition_offset, called=called, argument="partition_offset")
        bounds = list(zip(begins, part, sizes, strict=False))
        if not len(begins) == len(part) == len(sizes) or any(not 0 <= at <= at + n <= size for at, n, size in bounds):
            raise InvalidArgumentError.of(
                called,
                found=f"the part of shape {list(part)} at {list(begins)} of a tensor of shape {list(sizes)}",
                rule="a part must lie inside the tensor and have as many dimensions as the tensor",
                remedy="pass the shape of the whole tensor as shape, and of one part as partition_shape",
            )
        return made[tuple(slice(at, at + n) for at, n, _ in bounds)]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor arguments as a dict, from which `from_config` creates an equal initializer."""
        return {name.removeprefix("_"): value for name, value in vars(self).items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        """Creates an initializer from the dict that `get_config` returned."""
        return cls(**config)

    @abc.abstractmethod
    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array: ...


class Zeros(Initializer):
    """Initializer that fills a variable with zeros."""

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        return jnp.zeros(shape, dtype)


class Ones(Initializer):
    """Initializer that fills a variable with ones."""

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        return jnp.ones(shape, dtype)


class Constant(Initializer):
    """Initializer that fills a variable with one number, or with an array of values."""

    def __init__(self, value: Operand = 0) -> None:
        self._value = value

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        value = as_tensor(self._value).astype(dtype)
        return jnp.broadcast_to(value, shape) if value.ndim == 0 or value.size == 1 else value.reshape(shape)


def _key(seed: int | None) -> jax.Array:
    """Returns a random key for one call of an initializer: the key of `seed`, or a new key if `seed` is None."""
    return next_key() if seed is None else key_of(jnp.asarray(initial_state(int(seed))[:2]))


class RandomNormal(Initializer):
    """Initializer that draws random values from a normal distribution."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        self._mean, self._stddev, self._seed = mean, stddev, seed

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        return self._mean + self._stddev * unit_normal(_key(self._seed), shape, dtype)


class TruncatedNormal(Initializer):
    """Initializer that draws from a normal distribution truncated at two standard deviations."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        self._mean, self._stddev, self._seed = mean, stddev, seed

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        return self._mean + self._stddev * unit_truncated_normal(_key(self._seed), shape, dtype)


class RandomUniform(Initializer):
    """Initializer that draws random values from a uniform distribution."""

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None) -> None:
        self._minval, self._maxval, self._seed = minval, maxval, seed

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        return jax.random.uniform(_key(self._seed), shape, dtype, self._minval, self._maxval)


class VarianceScaling(Initializer):
    """Initializer that draws random values of variance ``scale / fan``, where the fan depends on the shape.

    The fan is the one that `mode` names, such as ``fan_in``.

    Source: X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010;
    K. He et al., "Delving deep into rectifiers", 2015.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
    ) -> None:
        self._scale, self._mode, self._distribution, self._seed = scale, mode, distribution, seed

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        # JAX's "normal" is not truncated; TensorFlow takes it for the older name of "truncated_normal".
        names = {"untruncated_normal": "normal", "normal": "truncated_normal"}
        how: Any = names.get(self._distribution, self._distribution)
        if len(shape) < 2:  # for a vector, TensorFlow sets fan_in = fan_out = length; JAX raises
            size = shape[0] if shape else 1
            make = jax.nn.initializers.variance_scaling(self._scale, "fan_in", how)
            return make(_key(self._seed), (size, 1), drawing_dtype(dtype)).astype(dtype).reshape(shape)
        make = jax.nn.initializers.variance_scaling(self._scale, self._mode, how)  # type: ignore[arg-type]
        return make(_key(self._seed), shape, drawing_dtype(dtype)).astype(dtype)


def _scaling(name: str, scale: float, mode: str, distribution: str) -> type[Initializer]:
    def __init__(self: VarianceScaling, seed: int | None = None) -> None:
        VarianceScaling.__init__(self, scale, mode, distribution, seed)

    def get_config(self: VarianceScaling) -> dict[str, Any]:
        return {"seed": self._seed}

    doc = f"`VarianceScaling` with scale {scale}, {mode}, {distribution}."
    members = {"__init__": __init__, "get_config": get_config, "__doc__": doc, "__module__": __name__}
    return type(name, (VarianceScaling,), members)


GlorotNormal = _scaling("GlorotNormal", 1.0, "fan_avg", "truncated_normal")
GlorotUniform = _scaling("GlorotUniform", 1.0, "fan_avg", "uniform")
HeNormal = _scaling("HeNormal", 2.0, "fan_in", "truncated_normal")
HeUniform = _scaling("HeUniform", 2.0, "fan_in", "uniform")
LecunNormal = _scaling("LecunNormal", 1.0, "fan_in", "truncated_normal")
LecunUniform = _scaling("LecunUniform", 1.0, "fan_in", "uniform")


class Orthogonal(Initializer):
    """Initializer that creates a random matrix with orthonormal rows or columns, times `gain`."""

    def __init__(self, gain: float = 1.0, seed: int | None = None) -> None:
        self._gain, self._seed = gain, seed

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        return jax.nn.initializers.orthogonal(self._gain)(_key(self._seed), shape, drawing_dtype(dtype)).astype(dtype)


class Identity(Initializer):
    """Initializer that creates the identity matrix, times `gain`."""

    def __init__(self, gain: float = 1.0) -> None:
        self._gain = gain

    def _made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        if len(shape) != 2:
            raise ValueError(f"Identity matrix initializer can only be used for 2D matrices. Received: shape={shape}")
        return self._gain * jnp.eye(*shape, dtype=dtype)


_PLACES: dict[type[Initializer], str] = {
    Zeros: "zeros_initializer initializers.Zeros initializers.zeros",
    Ones: "ones_initializer initializers.Ones initializers.ones",
    Constant: "constant_initializer initializers.Constant initializers.constant",
    RandomNormal: "random_normal_initializer initializers.RandomNormal initializers.random_normal",
    RandomUniform: "random_uniform_initializer initializers.RandomUniform initializers.random_uniform",
    TruncatedNormal: "initializers.TruncatedNormal initializers.truncated_normal",
    VarianceScaling: "initializers.VarianceScaling initializers.variance_scaling",
    GlorotNormal: "initializers.GlorotNormal initializers.glorot_normal",
    GlorotUniform: "initializers.GlorotUniform initializers.glorot_uniform",
    HeNormal: "initializers.HeNormal initializers.he_normal",
    HeUniform: "initializers.HeUniform initializers.he_uniform",
    LecunNormal: "initializers.LecunNormal initializers.lecun_normal",
    LecunUniform: "initializers.LecunUniform initializers.lecun_uniform",
    Orthogonal: "initializers.Orthogonal initializers.orthogonal",
    Identity: "initializers.Identity initializers.identity",
}
for _class, _names in _PLACES.items():
    register(_names.split(), _class)
