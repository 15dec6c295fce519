"""Collectives of one local replica under a JAX transform, where it cannot wait for the other local replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from mirrored._jax.local_collectives import replica_gather, replica_sum, run_eagerly
from mirrored.collectives.algorithm import checked, floating
from mirrored.collectives.precision import narrow, widen
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.runtime.ambient import ambient
from mirrored.runtime.merging import Merge


def nested_reduce(op: Any, arrays: Sequence[Any], local: int, replicas: int) -> list[Any]:
    """Reduces arrays over all replicas, given those of local replica `local`."""
    if not arrays:
        return []
    arrays = [checked(op, [array])[0] for array in arrays]
    if op is ReduceOp.SUM:
        return replica_sum(arrays, local, replicas)
    if op is ReduceOp.MEAN:
        exact = list(map(floating, arrays))
        sums = replica_sum(list(map(widen, exact)), local, replicas)
        return [narrow(total / replicas, array.dtype) for total, array in zip(sums, exact, strict=True)]
    return [op(stacked) for stacked in replica_gather(arrays, local, replicas)]


def nested_gather(arrays: Sequence[Any], axis: int, local: int, replicas: int) -> list[Any]:
    """Concatenates the arrays of all replicas along `axis`, given those of local replica `local`."""
    return [jnp.concatenate(list(stacked), axis) for stacked in replica_gather(arrays, local, replicas)]


def _merge(name: str, run: Any, arrays: list[Any]) -> list[Any]:
    runner = ambient().runner
    assert runner is not None
    return list(runner.run_merge(Merge(name, run), arrays))


def _sums(arrays: list[Any]) -> list[Any]:
    runner: Any = ambient().runner

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        results = runner.all_reduce(ReduceOp.SUM, [list(parts) for parts in zip(*payloads, strict=True)])
        return [[parts[k] for parts in results] for k in range(len(payloads))]

    return _merge("ReplicaContext.all_reduce", run, arrays)


def _gathers(arrays: list[Any]) -> list[Any]:
    runner: Any = ambient().runner

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        rows = [[part[None] for part in parts] for parts in zip(*payloads, strict=True)]
        results = runner.gather_each(rows, 0)
        return [[parts[k] for parts in results] for k in range(len(payloads))]

    return _merge("ReplicaContext.all_gather", run, arrays)


def _number(local: int) -> int | None:
    runner = ambient().runner
    return None if runner is None or runner.stands_for_others else runner.device_assignment.addressable_replicas[local]


run_eagerly(_sums, _gathers, _number)
