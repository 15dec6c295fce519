"""Passes replicated values across the boundary of `shard_map` as one equal row per device.

JAX transposes `shard_map` by dividing the cotangent of a replicated result by the number of devices, and summing those
of a replicated operand over the devices. The division rounds unless that number is a power of two. For gradients with
equal bits on any number of devices, a replicated value therefore crosses the boundary as an array ``[devices, ...]``.
Neither conversion communicates in the forward pass: every device reads and writes its own copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from mirrored._jax.linear import linear
from mirrored.topology.device_assignment import AXIS


def _over(mesh: Mesh, function: Callable[[Any], Any], *, given: PartitionSpec, gives: PartitionSpec) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=gives, check_vma=False)


_ROWS, _EQUAL = PartitionSpec(AXIS), PartitionSpec()


def _to_rows(mesh: Mesh, value: object) -> list[Any]:
    return [_over(mesh, lambda one: one[None], given=_EQUAL, gives=_ROWS)(value)]


def _to_equal(mesh: Mesh, rows: jax.Array) -> list[Any]:
    return [_over(mesh, lambda row: row[0], given=_ROWS, gives=_EQUAL)(rows)]


def _to_first_row(mesh: Mesh, value: object) -> list[Any]:
    only_first = lambda one: jnp.where(lax.axis_index(AXIS) == 0, one, jnp.zeros_like(one))[None]  # noqa: E731
    return [_over(mesh, only_first, given=_EQUAL, gives=_ROWS)(value)]


# A batch axis is the first one of a value, and the second one of rows.


def first_row(mesh: Mesh, rows: jax.Array) -> Any:
    """Converts an array ``[devices, ...]`` with equal rows to a replicated array with the value of one row.

    The cotangent goes to the first device alone.
    """
    transpose = lambda value: [_first_row_only(mesh, value)]  # noqa: E731
    [value] = linear(functools.partial(_to_equal, mesh), transpose, rows, batch_axes=(1, 0))
    return value


def _first_row_only(mesh: Mesh, value: jax.Array) -> Any:
    """Converts a replicated value to an array ``[devices, ...]`` with the value in the first row, and zeros."""
    transpose = lambda rows: [first_row(mesh, rows)]  # noqa: E731
    [rows] = linear(functools.partial(_to_first_row, mesh), transpose, value, batch_axes=(0, 1))
    return rows


def one_row_each(mesh: Mesh, value: jax.Array) -> Any:
    """Converts a replicated value to an array ``[devices, ...]`` that has the same row on each device.

    The rows of the cotangent are equal: `fan_out` has summed them over all replicas.
    """
    transpose = lambda rows: [first_row(mesh, rows)]  # noqa: E731
    [rows] = linear(functools.partial(_to_rows, mesh), transpose, value, batch_axes=(0, 1))
    return rows


def first_row_of_any_dtype(mesh: Mesh, rows: jax.Array) -> Any:
    """Like `first_row`, but also for integers and PRNG keys, which have no cotangent."""
    return first_row(mesh, rows) if jnp.issubdtype(rows.dtype, jnp.inexact) else _to_equal(mesh, rows)[0]
