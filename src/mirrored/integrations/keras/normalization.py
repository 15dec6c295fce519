"""Batch normalization in Keras with statistics over all replicas: `SyncBatchNormalization`, ``synchronized=True``."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp

from mirrored._typing import Operand
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import reduction_axes_of, tensorflow_names
from mirrored.patches import replace
from mirrored.strategies import get_replica_context
from mirrored.strategies.context import all_reduce_for

if TYPE_CHECKING:
    from keras.layers import BatchNormalization

    from mirrored.strategies.context import ReplicaContext

keras = load()
_BatchNormalization: Any = keras.layers.BatchNormalization
_LAYER: Final = "keras.layers.BatchNormalization(synchronized=True)"


@keras.saving.register_keras_serializable(package="mirrored")  # type: ignore[untyped-decorator]
class SyncBatchNormalization(_BatchNormalization):  # type: ignore[misc]
    """A Keras layer for batch normalization with statistics over the examples of all replicas.

    In `strategy.run`, the plain `keras.layers.BatchNormalization` uses the statistics of each replica's own batch. In
    `fit`, both layers use those of the global batch, as single-device Keras does. This layer performs two small
    all-reduces per call in training. Empty and uneven per-replica batches are weighted by their number of examples.

    Args:
        axis: As for `keras.layers.BatchNormalization`.
        momentum: As for `keras.layers.BatchNormalization`.
        epsilon: As for `keras.layers.BatchNormalization`.
        **kwargs: As for `keras.layers.BatchNormalization`.

    TensorFlow: `tf.keras.layers.experimental.SyncBatchNormalization`, which reduces the mean of the squares instead of
    the squared distances from the mean, and so loses precision for large means.
    """

    def __init__(self, axis: int = -1, momentum: float = 0.99, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(axis, momentum, epsilon, **{**kwargs, "synchronized": True})


def connect_normalization() -> None:
    """Patches Keras' `BatchNormalization` to accept ``synchronized=True`` on the JAX backend.

    Also adds `SyncBatchNormalization` under TensorFlow's path, `keras.layers.experimental`.
    """
    replace("keras", _BatchNormalization, "__init__", _accepting(_BatchNormalization.__init__))
    replace("keras", _BatchNormalization, "_moments", _over_replicas(_BatchNormalization._moments))
    experimental = types.ModuleType("keras.layers.experimental", "TensorFlow's tf.keras.layers.experimental.")
    experimental.SyncBatchNormalization = SyncBatchNormalization  # type: ignore[attr-defined]
    # Keras exports its names twice: also in `_tf_keras`, under TensorFlow's paths.
    twice: tuple[Any, ...] = (keras.layers, tensorflow_names().layers)
    for layers in twice:
        replace("keras", layers, "experimental", experimental)


def _accepting(make: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor to accept ``synchronized=True``, which Keras rejects on the JAX backend."""

    @functools.wraps(make)
    def accepting(self: BatchNormalization, *args: Any, synchronized: bool = False, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.synchronized = synchronized

    # Keras reads the signature to record the constructor's arguments for serialization.
    accepting.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    return accepting


def _over_replicas(moments: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(moments)
    def moments_over_replicas(self: BatchNormalization, inputs: Operand, mask: Operand | None = None) -> Any:
        context = get_replica_context()
        if self.synchronized and context is not None and context.num_replicas_in_sync > 1:
            return _global_moments(context, inputs, mask, reduction_axes_of(self))
        if context is not None and 0 in inputs.shape:
            # A replica without examples: their mean is NaN. The moving statistics stay as they are.
            return self.moving_mean.value, self.moving_variance.value
        # Keras' method rejects the flag on the JAX backend.
        self.synchronized, given = False, self.synchronized
        try:
            return moments(self, inputs, mask)
        finally:
            self.synchronized = given

    return moments_over_replicas


def _global_moments(
    context: ReplicaContext, inputs: Operand, mask: Operand | None, axes: tuple[int, ...]
) -> tuple[Any, Any]:
    """Returns the mean and variance over the given axes and all replicas."""
    values = jnp.asarray(inputs)
    weights = None if mask is None else jnp.expand_dims(mask, -1).astype(values.dtype)
    if weights is not None:  # a product with 0 would be NaN for a masked value that is not finite
        values = jnp.where(weights != 0, values, 0)
    own = jnp.asarray(values.size // values.shape[_kept(values.ndim, axes)], values.dtype)
    count = own if weights is None else jnp.sum(jnp.broadcast_to(weights, values.shape), axes)
    total, count = all_reduce_for(_LAYER, context, ReduceOp.SUM, (jnp.sum(_weighted(values, weights), axes), count))
    count = jnp.maximum(count, 1)
    mean = total / count
    shape = [1] * values.ndim
    shape[_kept(values.ndim, axes)] = -1
    squares = jnp.sum(_weighted(jnp.square(values - mean.reshape(shape)), weights), axes)
    return mean, all_reduce_for(_LAYER, context, ReduceOp.SUM, squares) / count


def _weighted(values: jax.Array, weights: jax.Array | None) -> Any:
    return values if weights is None else values * weights


def _kept(ndim: int, axes: tuple[int, ...]) -> int:
    return next(axis for axis in range(ndim) if axis not in axes)
