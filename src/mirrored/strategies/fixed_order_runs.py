"""Compiles `Strategy.run` calls so that a tape outside the call sums the replicas' gradients in a fixed order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.inlining import Staged, stage
from mirrored._jax.traces import CaptureTracer
from mirrored._typing import Operand
from mirrored.collectives.fixed_order_tree import fan_out
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.collectives.stacked import reduce_stacked
from mirrored.collectives.summation import stack_isolated, unstack_isolated
from mirrored.errors import TransformError
from mirrored.runtime.ambient import announce_read
from mirrored.runtime.staged_values import Captured
from mirrored.strategies.tracing_runner import ReplicatedArgument

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy
    from mirrored.strategies.tracing_runner import TracingRunner
    from mirrored.variables.variable import Variable

# Gradients in a fixed order for a tape around a compiled run.
#
# JAX transposes `shard_map` by dividing the cotangent of a replicated result by the number of devices, and summing
# those of a replicated operand over the devices, after it has added those of a device's virtual replicas in the order
# of their uses. The division rounds unless that number is a power of two, and the order of the sum depends on the
# device assignment. Under an algorithm whose results are bit-identical, a run with a tape around it is built in another
# way:
#
# - a replicated operand enters as one row per device (`one_row_each`), and `fan_out` gives each virtual replica its own
#   copy, so that one fixed-order tree reduction sums the cotangents of all replicas;
# - a replicated result leaves as one row per device, of which `first_row` makes one value (`collectives.equal_rows`).
#   The cotangent of that value goes to the row of the first device alone. So does that of `Strategy.reduce`.
#
# Neither communicates in the forward pass: every device reads and writes its own copy. An array that the replica
# function closes over enters in another way, so a gradient with respect to it is refused (`_without_gradient`).
#
# The forward and backward rules call functions with custom rules, themselves included. Under nested tapes the outer one
# differentiates what the rules of the inner one compute, and JAX's transpose of the raw `shard_map` would sum the equal
# rows of a cotangent: the second derivative would be too large by the number of devices.


def has_gradient(value: Operand) -> bool:
    """Returns whether `value` has a floating-point or complex dtype, and can therefore have a gradient."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def with_fixed_order(
    body: Staged, runner: TracingRunner, shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
) -> Staged:
    """Rewrites the program of a `run` so that gradients of captured values are summed in a fixed order.

    The new body has one constant per captured value, which `fan_out` copies to the local replicas.

    Args:
        body: The body, traced with `TracedReplicaStore.separates_reads`.
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
    """Supplies the values that a traced body captures; one `fan_out` operation copies a value to all local replicas."""

    def __init__(self, runner: TracingRunner) -> None:
        self._runner = runner
        self._copies: dict[int, list[Any]] = {}

    def of(self, constant: Operand) -> Any:
        source = constant.source if isinstance(constant, CaptureTracer) else None
        match source:
            case Captured(variable=variable, local=int(local)) if not variable.per_replica:
                return self._copy(variable, self._runner.store.capture(variable, None), local)
            case Captured(variable=variable, local=None) if has_gradient(constant):
                # Read in cross-replica context, once per device.
                [value] = fan_out(self._runner.group_of_devices, constant)
                return value
            case ReplicatedArgument(value=value, local=local):
                return self._copy(value, value, local)
            case None if isinstance(constant, jax.Array) and has_gradient(constant):
                return _without_gradient(constant)
        return constant

    def _copy(self, key: Any, value: Operand, local: int) -> Any:
        if id(key) not in self._copies:
            self._copies[id(key)] = fan_out(self._runner.group_info, value)
        return self._copies[id(key)][local]


@jax.custom_vjp
def _without_gradient(value: object) -> Any:
    return value


def _refuse_gradient(_: None, cotangent: jax.Array) -> Any:
    raise TransformError(
        "GradientTape.gradient",
        found=f"a gradient flows to an array {cotangent.dtype}{list(cotangent.shape)} that the replica function closes "
        "over",
        rule="with deterministic=True, gradients can flow only to variables and to arguments of run",
        remedy="pass the array to run as an argument: strategy.run(fn, args=(batch, array))",
    )


_without_gradient.defvjp(lambda value: (_without_gradient(value), None), _refuse_gradient)


def unstack_unfused(arrays: Sequence[jax.Array]) -> list[list[Any]]:
    """Splits stacked arrays into the replicas' values, and prevents XLA from fusing the split with other operations.

    XLA does not fuse the derivative either, which stacks the cotangents.
    """
    differentiable = [array for array in arrays if has_gradient(array)]
    others = iter(unstack_isolated([array for array in arrays if not has_gradient(array)]))
    rows = iter(_unstack(differentiable) if differentiable else ())
    return [next(rows) if has_gradient(array) else next(others) for array in arrays]


@jax.custom_vjp
def _unstack(arrays: Sequence[jax.Array]) -> list[list[Any]]:
    return unstack_isolated(arrays)


_unstack.defvjp(
    lambda arrays: (_unstack(arrays), None),
    lambda _, cotangents: (stack_isolated(cotangents),),
)


def announced_components(variable: Variable, stacked: jax.Array) -> Any:
    """Notifies tapes that a sync-on-read variable is read, and returns the stacked values of all replicas.

    Like `component_reads.announced_components`, but the strategy's algorithm sums the components' cotangents.
    """
    if not has_gradient(variable):
        return stacked
    return _components_of(variable.strategy, stacked, announce_read(variable, lax.stop_gradient(stacked[0])))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _components_of(strategy: Strategy, stacked: jax.Array, one: object) -> Any:
    del strategy, one
    return stacked


def _sum_components(strategy: Any, _: None, cotangents: Any) -> tuple[Any, Any]:
    [total] = reduce_stacked(strategy.cross_device_ops, ReduceOp.SUM, [cotangents], strategy.device_assignment)
    return jnp.zeros_like(cotangents), total


_components_of.defvjp(lambda strategy, stacked, one: (_components_of(strategy, stacked, one), None), _sum_components)
