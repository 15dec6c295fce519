"""Statistics over all replicas for `BatchNorm` of NNX and Linen, `nnx.SpectralNorm` and `nnx.metrics.Welford`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

from mirrored._jax.promotion import at_least_float32
from mirrored._typing import Array
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ContextError
from mirrored.extras import load
from mirrored.integrations.flax.holding import held, mirrored_statistics
from mirrored.integrations.flax.private import canonical_axes, linen_normalization, metrics, normalization
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.strategies import get_replica_context
from mirrored.strategies.context import all_reduce_for
from mirrored.variables import Variable

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")

_WELFORD: Final = "nnx.metrics.Welford.update"


def connect_statistics() -> None:
    """Patches Flax so that layers and metrics can compute statistics over the examples of all replicas.

    `BatchNorm` does so if it has an axis name. The states of `nnx.SpectralNorm` and `nnx.metrics.Welford` become
    mirrored variables.
    """
    for layer, module in (("nnx.BatchNorm", normalization), ("linen.BatchNorm", linen_normalization)):
        replace("flax", module, "_compute_stats", _over_replicas(layer, module._compute_stats))
    replace("flax", nnx.BatchNorm, "__call__", _with_examples(nnx.BatchNorm.__call__))
    replace("flax", metrics.Welford, "__init__", _of_all_replicas(metrics.Welford.__init__))
    replace("flax", normalization.SpectralNorm, "__init__", _of_all_replicas(normalization.SpectralNorm.__init__))
    replace("flax", metrics.Welford, "update", _merged(metrics.Welford.update))


def _with_examples(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `nnx.BatchNorm.__call__` so that a replica without examples keeps its running statistics.

    The mean of no examples is NaN. A layer with an axis name uses the statistics of all replicas instead.
    """

    @functools.wraps(call)
    def with_examples(self: Any, x: Array, *args: Any, **kwargs: Any) -> Any:
        if ambient().replica is None or self.axis_name is not None:
            return call(self, x, *args, **kwargs)
        if 0 not in jnp.shape(x):
            return _with_mask(call, self, x, *args, **kwargs)
        kwargs.pop("use_running_average", None)
        return call(self, x, True, *args[1:], **kwargs)

    return with_examples


def _with_mask(
    call: Callable[..., Any], norm: Any, x: Array, use_running_average: bool | None = None, *, mask: Any = None
) -> Any:
    """Calls `nnx.BatchNorm`; a feature whose elements on this replica are all masked keeps its running statistics.

    Its mean would be 0/0, and its statistics NaN permanently. It is normalized by its masked elements.
    """
    is_running = norm.use_running_average if use_running_average is None else use_running_average
    if mask is None or is_running or is_running is None:
        return call(norm, x, use_running_average, mask=mask)
    mask = jnp.asarray(mask, bool)
    reduced = tuple(axis for axis in range(jnp.ndim(x)) if axis not in canonical_axes(jnp.ndim(x), norm.axis))
    counted = jnp.any(jnp.broadcast_to(mask, jnp.shape(x)), reduced, keepdims=True)
    before = norm.mean[...], norm.var[...]
    result = call(norm, x, use_running_average, mask=mask | ~counted)
    here = jnp.squeeze(counted, reduced)
    for statistic, old in zip((norm.mean, norm.var), before, strict=True):
        statistic[...] = jnp.where(here.reshape(old.shape), statistic[...], old)
    return result


def _over_replicas(layer: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Flax's computation of mean and variance to include all replicas if an axis name is given in `strategy.run`.

    Each replica's sums are weighted by their number of elements, so uneven per-replica batches give the statistics of
    the global batch.
    """

    @functools.wraps(compute)
    def over_replicas(
        x: Array, axes: Any, dtype: Any, axis_name: Any = None, axis_index_groups: Any = None, **options: Any
    ) -> Any:
        replica = ambient().replica
        if axis_name is None or replica is None or _is_bound(axis_name):
            return compute(x, axes, dtype, axis_name, axis_index_groups, **options)
        if axis_index_groups is not None:
            raise ContextError(
                layer,
                found=f"axis_index_groups={axis_index_groups!r} was given for the replicas of a run",
                rule="statistics are those of one replica's batch, or of the batches of all replicas",
                remedy="omit axis_index_groups",
            )
        if replica.num_replicas_in_sync == 1:
            return compute(x, axes, dtype, None, None, **options)
        dtype = dtype or jnp.result_type(x)
        if options.pop("force_float32_reductions", True):  # An option of Linen's.
            dtype = at_least_float32(dtype)
        return _global_statistics(layer, x, axes, dtype, **options)

    return over_replicas


def _is_bound(axis_name: Any) -> bool:
    """Returns whether a JAX transform such as `jax.vmap` binds the axis name at this point."""
    try:
        jax.lax.psum(1, axis_name)
    except NameError:
        return False
    return True


def _global_statistics(
    layer: str,
    x: Array,
    axes: Any,
    dtype: Any,
    use_mean: bool = True,
    use_fast_variance: bool = True,
    mask: Array | None = None,
) -> tuple[Any, Any]:
    """Returns the mean and the variance over the batches of all replicas."""
    x = jnp.asarray(x, dtype)
    mask = None if mask is None else jnp.asarray(mask, bool)
    axes = canonical_axes(x.ndim, axes)
    context: Any = get_replica_context()
    real = jnp.real(x).dtype

    def means(*values: Any) -> list[Any]:
        weights = jnp.ones((), real) if mask is None else jnp.asarray(mask, real)
        count = jnp.sum(jnp.broadcast_to(weights, x.shape), axes)
        sums = [jnp.sum(value, axes, where=mask) for value in values]
        count, *sums = all_reduce_for(layer, context, ReduceOp.SUM, [count, *sums])
        return [total / count for total in sums]

    def squares(value: Any) -> Any:
        return jnp.square(jnp.abs(value)) if jnp.iscomplexobj(value) else jnp.square(value)

    if not use_mean:
        [variance] = means(squares(x))
        return jnp.zeros_like(variance), variance
    if use_fast_variance:
        mean, mean_of_squares = means(x, squares(x))
        return mean, jnp.maximum(0.0, mean_of_squares - squares(mean))
    [mean] = means(x)
    [variance] = means(squares(x - jnp.expand_dims(mean, axes)))
    return mean, variance


def _of_all_replicas(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps the ``__init__`` of a layer or metric so that its state is mirrored over the replicas.

    The mean of `Welford` is no sum over replicas, so its state is that of all replicas, however it is read: by
    `compute`, by `mirrored.unmirror`, in a copy or a checkpoint. `SpectralNorm` computes its state from its kernel
    alone, so the values of all replicas are equal.
    """

    @functools.wraps(init)
    def of_all_replicas(self: Any, *args: Any, **kwargs: Any) -> None:
        with mirrored_statistics():
            init(self, *args, **kwargs)

    return of_all_replicas


def _merged(update: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Welford.update` so that, inside `strategy.run`, two all-reduces merge the values of all replicas.

    In a run it takes `mask`, as the other metrics do: an array that broadcasts to the values, false for those to leave
    out (such as padding). Flax ignores it.

    Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", COMPSTAT 1982.
    """

    @functools.wraps(update)
    def merged(self: Any, **kwargs: Any) -> None:
        replica, mask = ambient().replica, kwargs.get("mask")
        if replica is None or self.argname not in kwargs or (replica.num_replicas_in_sync == 1 and mask is None):
            return update(self, **kwargs)
        if replica.num_replicas_in_sync > 1:
            _check_is_mirrored(held(self.count))
        context: Any = get_replica_context()
        values = jnp.asarray(kwargs[self.argname])
        values = values.astype(at_least_float32(values.dtype))
        used = jnp.broadcast_to(True if mask is None else jnp.asarray(mask, bool), values.shape)
        own = [jnp.sum(used), jnp.sum(values, where=used)]
        count, total = all_reduce_for(_WELFORD, context, ReduceOp.SUM, own)
        mean = total / jnp.maximum(count, 1)
        squares = all_reduce_for(_WELFORD, context, ReduceOp.SUM, jnp.sum((values - mean) ** 2, where=used))
        before, delta = self.count[...], mean - self.mean[...]
        share = count / jnp.maximum(before + count, 1)
        self.count[...] = before + count
        self.mean[...] += delta * share
        self.m2[...] += squares + delta * delta * share * before
        return None

    return merged


def _check_is_mirrored(state: object) -> None:
    if not isinstance(state, Variable) or state.device_assignment is None or state.per_replica:
        raise ContextError(
            _WELFORD,
            found="the metric was created outside strategy.scope()",
            rule="each replica would merge its values into a state of its own, whose mean is no sum over replicas",
            remedy="create the metric inside `with strategy.scope():`",
        )
