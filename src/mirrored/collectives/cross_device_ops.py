"""How the values of several replicas become one. (First landing, so that others can build on it; being replaced whole.)"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from mirrored.collectives.group import Group
from mirrored.collectives.reduce_op import ReduceOp


def tree_sum(values: Sequence[Any]) -> Any:
    """Pairs of neighbours first."""
    values = list(values)
    while len(values) > 1:
        paired = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = paired + ([values[-1]] if len(values) % 2 else [])
    return values[0]


class CrossDeviceOps(abc.ABC):
    """An algorithm for reductions over replicas."""

    @abc.abstractmethod
    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[Any]:
        """Reduces each array's components; the results are equal on all devices."""


def gathered(components: Sequence[Any], group: Group) -> Any:
    """All components ``[replicas, ...]``."""
    stacked = jnp.stack(list(components))
    return stacked if group.axis is None else lax.all_gather(stacked, group.axis, axis=0, tiled=True)


def finished(op: Any, total: Any, group: Group) -> Any:
    """The mean from the sum, where that is asked for."""
    if op is not ReduceOp.MEAN:
        return total
    total = total if jnp.issubdtype(total.dtype, jnp.inexact) else total.astype(jnp.float32)
    return total / group.num_replicas


class AllReduce(CrossDeviceOps):
    """One fused all-reduce."""

    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[Any]:
        if op is not ReduceOp.SUM and op is not ReduceOp.MEAN:
            return [op(gathered(components, group)) for components in arrays]
        totals = [tree_sum(components) for components in arrays]
        if group.axis is not None and totals:
            totals = list(lax.psum(tuple(totals), group.axis))
        return [finished(op, total, group) for total in totals]


class OrderedTree(CrossDeviceOps):
    """One order of sums, whatever the devices."""

    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[Any]:
        whole = [gathered(components, group) for components in arrays]
        if op is not ReduceOp.SUM and op is not ReduceOp.MEAN:
            return [op(stacked) for stacked in whole]
        return [finished(op, tree_sum([w[i] for i in range(group.num_replicas)]), group) for w in whole]
