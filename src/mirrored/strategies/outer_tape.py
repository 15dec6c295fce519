"""Gradients in a fixed order for a tape around a compiled run.

JAX transposes `shard_map` by summing the cotangents of a replicated operand over the devices, after it has added those
of a device's virtual replicas in the order of their uses. The order of that sum depends on the device assignment. Under
an algorithm whose results are bit-identical, a run with a tape around it is built in another way:

- a replicated operand enters as one row per device (`one_row_each`), and `fan_out` gives each virtual replica its own
  copy, so that one fixed-order tree reduction sums the cotangents of all replicas;
- a replicated result leaves as one row per device (`first_row`), and its cotangent belongs to the first replica.

Neither communicates in the forward pass: every device reads and writes its own copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from mirrored._jax.capture import CaptureTracer
from mirrored._jax.staging import Staged, stage
from mirrored.collectives.fixed_order_tree import fan_out
from mirrored.collectives.fusion_boundaries import stack_isolated
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.collectives.stacked import reduce_stacked
from mirrored.errors import TransformError
from mirrored.runtime.listeners import announce_read
from mirrored.strategies.tracing_runner import Captured, Passed, TracingRunner
from mirrored.topology.device_assignment import AXIS


def has_gradient(value: Any) -> bool:
    """Returns whether `value` can have a cotangent: float or complex."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def with_fixed_order(
    body: Staged, runner: TracingRunner, shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
) -> Staged:
    """Returns the body of a run with one constant per captured value, instead of one per virtual replica.

    Args:
        body: The body, traced with `TracingRunner.separates_reads`.
        runner: The runner that traced it.
        shapes: The shapes and dtypes of its inputs.
        axes: The mesh axis and its size.
    """
    once = functools.partial(_Constants, runner)

    def joined(*inputs: Any) -> list[Any]:
        constants = once()
        return body([constants.of(constant) for constant in body.constants], inputs)

    return stage(joined, shapes, axes=axes)


class _Constants:
    """Computes the values of a body's constants; captured values are fanned out to the virtual replicas once each."""

    def __init__(self, runner: TracingRunner) -> None:
        self._runner = runner
        self._copies: dict[int, list[Any]] = {}

    def of(self, constant: Any) -> Any:
        source = constant.source if isinstance(constant, CaptureTracer) else None
        match source:
            case Captured(variable=variable, local=int(local)) if not variable.per_replica:
                return self._copy(variable, self._runner.capture(variable, None), local)
            case Captured(variable=variable, local=None) if has_gradient(constant):
                # Read in cross-replica context, once per device.
                [value] = fan_out(self._runner.group_of_devices, constant)
                return value
            case Passed(value=value, local=local):
                return self._copy(value, value, local)
            case None if isinstance(constant, jax.Array) and has_gradient(constant):
                return _without_gradient(constant)
        return constant

    def _copy(self, key: Any, value: Any, local: int) -> Any:
        if id(key) not in self._copies:
            self._copies[id(key)] = fan_out(self._runner.group_info, value)
        return self._copies[id(key)][local]


@jax.custom_vjp
def _without_gradient(value: Any) -> Any:
    return value


def _refuse_gradient(_: None, cotangent: Any) -> Any:
    raise TransformError(
        "GradientTape.gradient",
        found=f"deterministic=True, and the gradient of an array {cotangent.dtype}{list(cotangent.shape)} from outside "
        "of run, over which the replica function closes",
        rule="the cotangents of all replicas are summed in a fixed order, for variables and for arguments of run",
        remedy="pass the array to run as an argument: strategy.run(fn, args=(batch, array))",
    )


_without_gradient.defvjp(lambda value: (value, None), _refuse_gradient)


def _over(mesh: Mesh, function: Callable[[Any], Any], *, given: PartitionSpec, gives: PartitionSpec) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=gives, check_vma=False)


_ROWS, _EQUAL = PartitionSpec(AXIS), PartitionSpec()


def _to_rows(mesh: Mesh, value: Any) -> Any:
    return _over(mesh, lambda one: one[None], given=_EQUAL, gives=_ROWS)(value)


def _to_equal(mesh: Mesh, rows: Any) -> Any:
    return _over(mesh, lambda row: row[0], given=_ROWS, gives=_EQUAL)(rows)


def _to_first_row(mesh: Mesh, value: Any) -> Any:
    only_first = lambda one: jnp.where(lax.axis_index(AXIS) == 0, one, jnp.zeros_like(one))[None]  # noqa: E731
    return _over(mesh, only_first, given=_EQUAL, gives=_ROWS)(value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def one_row_each(mesh: Mesh, value: Any) -> Any:
    """Returns a replicated value as ``[devices, ...]``, one row on each device.

    The rows of the cotangent are equal: `fan_out` has summed them over all replicas.
    """
    return _to_rows(mesh, value)


one_row_each.defvjp(lambda mesh, value: (_to_rows(mesh, value), None), lambda mesh, _, rows: (_to_equal(mesh, rows),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def first_row(mesh: Mesh, rows: Any) -> Any:
    """Returns equal rows ``[devices, ...]``, one on each device, as one replicated value.

    The cotangent goes to the first device alone.
    """
    return _to_equal(mesh, rows)


first_row.defvjp(lambda mesh, rows: (_to_equal(mesh, rows), None), lambda mesh, _, value: (_to_first_row(mesh, value),))


def rows_of(stacked: Any) -> list[Any]:
    """Returns the components of ``[local, ...]``. Iteration over a tracer would add a jitted helper to the program."""
    return [stacked[k] for k in range(stacked.shape[0])]


def unstack(stacked: Any) -> list[Any]:
    """Returns the components of ``[local, ...]``. The backward pass stacks cotangents behind a fusion boundary."""
    return _unstack(stacked) if has_gradient(stacked) else rows_of(stacked)


@jax.custom_vjp
def _unstack(stacked: Any) -> list[Any]:
    return rows_of(stacked)


_unstack.defvjp(
    lambda stacked: (rows_of(stacked), None),
    lambda _, cotangents: (stack_isolated([cotangents])[0],),
)


def announced_components(variable: Any, stacked: Any) -> Any:
    """Acts as `variable_store.announced_components`, but the strategy's algorithm sums the components' cotangents."""
    if not has_gradient(variable):
        return stacked
    return _components_of(variable.strategy, stacked, announce_read(variable, lax.stop_gradient(stacked[0])))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _components_of(strategy: Any, stacked: Any, one: Any) -> Any:
    del strategy, one
    return stacked


def _sum_components(strategy: Any, _: None, cotangents: Any) -> tuple[Any, Any]:
    [total] = reduce_stacked(strategy.cross_device_ops, ReduceOp.SUM, [cotangents], strategy.device_assignment)
    return jnp.zeros_like(cotangents), total


_components_of.defvjp(lambda strategy, stacked, one: (stacked, None), _sum_components)
