"""Warns if an optimizer sums gradients of the wrong scale over replicas, such as gradients of a per-replica mean."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from mirrored._jax.source_lines import user_stacklevel
from mirrored.analysis.loss_scaling import LossScaling, Mean
from mirrored.analysis.replication_check import ReplicationCheck
from mirrored.errors import LossScaleWarning


class SummedGradients(NamedTuple):
    """Gradients that a method such as `apply_gradients` sums over replicas, with the method's name.

    Attributes:
        called: The method.
        rows: The gradients of the local replicas, for each variable.
        are_divided: Whether the method also divides the sums by the number of examples of all replicas.
    """

    called: str
    rows: Sequence[Sequence[Any]]
    are_divided: bool = False


def check_loss_scale(
    summed: SummedGradients, scale: LossScaling, analysis: ReplicationCheck, num_replicas: int
) -> None:
    """Warns if a sum of gradients over replicas has the wrong scale.

    The scale is wrong if the gradients come from a mean over the per-replica batch, or are already summed over
    replicas. A method that also divides the sums must not get gradients of a mean over the global batch.

    Args:
        summed: The gradients, as variables of the traced replica function.
        scale: The loss scaling analysis of this function.
        analysis: Its replication check.
        num_replicas: The number of replicas.
    """
    called, rows, _ = summed
    firsts = [row[0] for row in rows]
    if summed.are_divided:
        parts = scale.global_means_in(firsts)
        if parts:
            _warn_of_parts(called, parts[0], num_replicas)
        return
    means = scale.means_in(firsts)
    if means:
        _warn_of_mean(called, means[0], num_replicas)
    elif num_replicas > 1 and scale.are_totals(firsts) and all(analysis.same(row) for row in rows):
        _warn_of_totals(called, num_replicas)


def _warn_of_parts(called: str, part: Mean, replicas: int) -> None:
    where = f" ({part.where})" if part.where else ""
    warnings.warn(
        f"{called} weights the gradients of a mean over one replica's examples by their number, and the loss{where} is "
        f"divided by the {part.size * replicas} examples of all replicas: the step is {replicas} times too small\n"
        "  rule:   the accumulator itself divides by the examples of all micro-batches and replicas; the loss is the "
        "mean over one micro-batch of one replica\n"
        "  remedy: loss = jnp.mean(per_example_losses)",
        LossScaleWarning,
        stacklevel=user_stacklevel(),
    )


def _warn_of_totals(called: str, replicas: int) -> None:
    warnings.warn(
        f"{called} sums the gradients of {replicas} replicas, and they are equal on all replicas, because they were "
        f"reduced before: the step is {replicas} times too large\n"
        "  rule:   the gradients of all replicas are reduced once\n"
        f"  remedy: omit the all_reduce, because {called} sums over replicas; optimizers of mirrored.optimizers take "
        "skip_gradients_aggregation=True for gradients that are reduced already",
        LossScaleWarning,
        stacklevel=user_stacklevel(),
    )


def _warn_of_mean(called: str, mean: Mean, replicas: int) -> None:
    where = f" ({mean.where})" if mean.where else ""
    if mean.weighted:
        found = f"divided by a sum over the {mean.size} examples of one replica, as a weighted or masked mean is"
        remedy = (
            "loss = mirrored.losses.average_loss(per_example_losses, weights), which divides by the weights of all "
            "replicas; or divide by get_replica_context().all_reduce('SUM', jnp.sum(weights))"
        )
    else:
        found = f"averaged over the {mean.size} examples of one replica"
        remedy = (
            "loss = mirrored.losses.average_loss(per_example_losses); or, if all per-replica batches have one size, "
            "tf.nn.compute_average_loss(per_example_losses), or the mean / get_strategy().num_replicas_in_sync"
        )
    warnings.warn(
        f"{called} sums the gradients of {replicas} replicas, and the loss{where} is {found}: the step is {replicas} "
        "times too large\n"
        "  rule:   a replica's loss must be its contribution to the mean over the global batch\n"
        f"  remedy: {remedy}",
        LossScaleWarning,
        stacklevel=user_stacklevel(),
    )
