"""Statistics over all replicas: `nnx.BatchNorm` with an axis name, and the metric `nnx.metrics.Welford`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._typing import Array
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ContextError
from mirrored.integrations.flax.holding import held
from mirrored.integrations.flax.private import canonical_axes, metrics, normalization
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.strategies import get_replica_context
from mirrored.variables import Variable


def connect_statistics() -> None:
    """Patches the statistics of `nnx.BatchNorm` and the result of `nnx.metrics.Welford`."""
    replace("flax", normalization, "_compute_stats", _over_replicas(normalization._compute_stats))
    replace("flax", metrics.Welford, "compute", _combined(metrics.Welford.compute))


def _over_replicas(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the computation of a batch's mean and variance: in a run, an axis name stands for all replicas.

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
                "nnx.BatchNorm",
                found=f"axis_index_groups={axis_index_groups!r} was given for the replicas of a run",
                rule="statistics are those of one replica's batch, or of the batches of all replicas",
                remedy="omit axis_index_groups",
            )
        if replica.num_replicas_in_sync == 1:
            return compute(x, axes, dtype, None, None, **options)
        return _global_statistics(x, axes, jnp.promote_types(dtype or jnp.result_type(x), jnp.float32), **options)

    return over_replicas


def _is_bound(axis_name: Any) -> bool:
    """Returns whether an axis name belongs to a transform of JAX inside the run, such as `jax.vmap`."""
    try:
        jax.lax.psum(1, axis_name)
    except NameError:
        return False
    return True


def _global_statistics(
    x: Array, axes: Any, dtype: Any, use_mean: bool = True, use_fast_variance: bool = True, mask: Array | None = None
) -> tuple[Any, Any]:
    """Returns the mean and the variance over the batches of all replicas."""
    x = jnp.asarray(x, dtype)
    axes = canonical_axes(x.ndim, axes)
    context: Any = get_replica_context()
    real = jnp.real(x).dtype

    def means(*values: Any) -> list[Any]:
        weights = jnp.ones((), real) if mask is None else jnp.asarray(mask, real)
        count = jnp.sum(jnp.broadcast_to(weights, x.shape), axes)
        sums = [jnp.sum(value, axes, where=mask) for value in values]
        count, *sums = context.all_reduce(ReduceOp.SUM, [count, *sums])
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


def _combined(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Welford.compute`: outside of `run` it combines the statistics of all replicas.

    A read of the metric's variables returns sums over the replicas, and the sum of their means is no mean.
    """

    @functools.wraps(compute)
    def combined(self: Any) -> Any:
        strategy = getattr(held(self.count), "strategy", None)
        if strategy is None or ambient().replica is not None or strategy.num_replicas_in_sync == 1:
            return compute(self)
        return strategy.local_results(strategy.run(functools.partial(_statistics_of, self)))[0]

    return combined


def _statistics_of(metric: Any) -> Any:
    context: Any = get_replica_context()
    count, mean, m2 = (_value(variable) for variable in (metric.count, metric.mean, metric.m2))
    total = context.all_reduce(ReduceOp.SUM, count)
    # After `reset`, the mean is 0, as that of the metric on one device.
    overall = context.all_reduce(ReduceOp.SUM, jnp.where(count > 0, mean * count, 0)) / jnp.maximum(total, 1)
    deviations = jnp.where(count > 0, m2 + count * (mean - overall) ** 2, 0)
    variance = context.all_reduce(ReduceOp.SUM, deviations) / total
    deviation = variance**0.5
    return metrics.Statistics(mean=overall, standard_error_of_mean=deviation / total**0.5, standard_deviation=deviation)


def _value(variable: Any) -> Any:
    content = held(variable)
    return content.read_value() if isinstance(content, Variable) else content
