"""Compiles `Strategy.run` calls so that gradients around the call sum the replicas' cotangents in a fixed order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.inlining import Staged, apply_jaxpr, stage
from mirrored._jax.jaxprs import Literal, Var
from mirrored._jax.traces import CaptureTracer
from mirrored._typing import Operand
from mirrored.collectives.fixed_order_tree import fan_out
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.collectives.stacked import reduce_stacked
from mirrored.collectives.summation import stack_isolated, unstack_isolated
from mirrored.runtime.ambient import announce_read
from mirrored.runtime.staged_values import Captured
from mirrored.strategies.padding import reader_of
from mirrored.strategies.tracing_runner import ReplicatedArgument, is_replica_copy, replica_copy

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy
    from mirrored.strategies.tracing_runner import TracingRunner
    from mirrored.variables.variable import Variable

# Gradients in a fixed order for a tape, or a transform of JAX, around a compiled run.
#
# JAX transposes `shard_map` by dividing the cotangent of a replicated result by the number of devices, and summing
# those of a replicated operand over the devices, after it has added those of a device's virtual replicas in the order
# of their uses. The division rounds unless that number is a power of two, and the order of the sum depends on the
# device assignment. Under an algorithm whose results are bit-identical, a run is therefore built in another way:
#
# - a replicated operand enters as one row per device (`one_row_each`), and `fan_out` gives each virtual replica its own
#   copy, so that one fixed-order tree reduction sums the cotangents of all replicas;
# - a replicated result leaves as one row per device, of which `first_row` makes one value (`collectives.equal_rows`).
#   The cotangent of that value goes to the row of the first device alone. So does that of `Strategy.reduce`.
#
# Neither communicates in the forward pass: every device reads and writes its own copy. It is the form of traced values
# from outside and of results in every such run, because a transform of JAX around the run may be unknown while the run
# is traced (`jax.grad` of a `scan` or a jitted function). Variables have it only if a tape is around the run, since no
# transform of JAX differentiates with respect to them.
#
# The forward and backward rules call functions with such rules, themselves included. Under nested tapes the outer one
# differentiates what the rules of the inner one compute, and JAX's transpose of the raw `shard_map` would sum the equal
# rows of a cotangent: the second derivative would be too large by the number of devices.


def has_gradient(value: Operand) -> bool:
    """Returns whether `value` has a floating-point or complex dtype, and can therefore have a gradient."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def reads_outer_values(body: Staged, runner: TracingRunner) -> bool:
    """Returns whether a traced body reads values from outside, other than variables, that may have gradients."""
    return any(is_replica_copy(constant) or runner.is_from_outside(constant) for constant in body.constants)


def with_separate_values(
    body: Staged, runner: TracingRunner, shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
) -> Staged:
    """Rewrites the program of a `run` so that each virtual replica reads its own constant for a value from outside.

    The replicas close over one tracer, or receive it as an argument, and JAX would add its cotangents in the order of
    the equations. The equations of merges keep the constant, which each device reads once.

    Args:
        body: The body, whose equations are marked by `padding.scope_of`.
        runner: The runner that traced it.
        shapes: The shapes and dtypes of its inputs.
        axes: The mesh axis and its size.
    """
    outer = dict(zip(body.jaxpr.constvars, body.constants, strict=True))
    outer = {variable: value for variable, value in outer.items() if runner.is_from_outside(value)}
    if not outer:
        return body
    own: dict[tuple[Any, int], Any] = {}

    def read(atom: Any, local: int | None) -> Any:
        if local is None or isinstance(atom, Literal) or atom not in outer:
            return atom
        return own.setdefault((atom, local), Var(atom.aval))

    equations = [
        eqn.replace(invars=[read(atom, reader_of(eqn, runner.num_local)) for atom in eqn.invars])
        for eqn in body.jaxpr.eqns
    ]
    separate = body.jaxpr.replace(
        invars=[*own.values(), *body.jaxpr.invars],
        eqns=equations,
        debug_info=body.jaxpr.debug_info.with_unknown_names(),
    )
    copies = [replica_copy(outer[variable], local) for variable, local in own]
    return stage(lambda *inputs: apply_jaxpr(separate, body.constants, [*copies, *inputs]), shapes, axes=axes)


def with_fixed_order(
    body: Staged, runner: TracingRunner, shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
) -> Staged:
    """Rewrites the program of a `run` so that gradients of captured values are summed in a fixed order.

    The new body has one constant per captured value, which `fan_out` copies to the local replicas.

    Args:
        body: The body, in which each virtual replica has its own constants (`with_separate_values`, and
            `TracedReplicaStore.separates_reads` for variables).
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
            case Captured(local=None) if self._runner.store.separates_reads and has_gradient(constant):
                return self._of_merge(constant)
            case ReplicatedArgument(value=value, local=local):
                return self._copy(value, value, local)
        return self._of_merge(constant) if self._runner.is_from_outside(constant) else constant

    def _of_merge(self, value: Operand) -> Any:
        """Returns a value that is read in cross-replica context, once per device."""
        [copy] = fan_out(self._runner.group_of_devices, value)
        return copy

    def _copy(self, key: Any, value: Operand, local: int) -> Any:
        if id(key) not in self._copies:
            self._copies[id(key)] = fan_out(self._runner.group_info, value)
        return self._copies[id(key)][local]


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
