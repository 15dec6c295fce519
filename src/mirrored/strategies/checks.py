"""Checks calls of `Strategy.run`: context, assignments to variables, arguments that are earlier results, meshes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from mirrored._jax.axes import REPLICA_AXIS, evaluates_constants, unbound_axis
from mirrored._jax.jaxprs import JaxprEqn
from mirrored._jax.placement import placements_in
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import is_differentiated
from mirrored._typing import PyTree
from mirrored.compilation.captured_objects import nested
from mirrored.compilation.frozen_state import within_reach
from mirrored.errors import (
    ContextError,
    DeviceError,
    DivergingStateWarning,
    MergeError,
    MirroredError,
    OutOfScopeWarning,
    ReplicaDivergenceError,
    TransformError,
)
from mirrored.runtime.ambient import ambient
from mirrored.runtime.function_key import key_of
from mirrored.runtime.staged_values import VariableLike
from mirrored.strategies.device_errors import devices_of_replicas
from mirrored.values import structures
from mirrored.values.attributes import attribute, has_attribute
from mirrored.values.distributed_values import PerReplica
from mirrored.values.provenance import Makers

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


def is_given(value: object, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a value in a replica function's result is an input of the function, not computed by it.

    An array is an input if it is among the function's arguments, closure variables, globals and defaults, or in an
    object among these. The replica has made all other arrays. Numbers, strings and other objects count as inputs.
    """
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return True
    given = [*within_reach(function), *(("an argument", leaf) for leaf in structures.flatten((args, kwargs))[0])]
    return any(part is value for _, part in nested(given))


# Checks that a strategy's method is called in the right context.


def refuse_in_replica(method: str) -> None:
    """Raises an error if a method that needs the cross-replica context is called inside a replica.

    Raises:
        ContextError: The call is inside a replica.
    """
    if ambient().replica is None:
        return
    raise ContextError(
        f"Strategy.{method}",
        found="it was called inside a replica",
        rule=f"{method} can be called only in cross-replica context",
        remedy="call it outside the function given to run, or inside get_replica_context().merge_call(fn)",
    )


def check_context(strategy: Strategy, method: str) -> None:
    """Raises an error if a strategy's method is called inside a replica, or in the scope of a different strategy.

    Raises:
        ContextError: The call is inside a replica, or another strategy is current.
    """
    here = ambient()
    if here.replica is not None:
        refuse_in_replica(method)
    strategies = here.strategies
    # A `merge_call` of the default strategy can use another strategy, like code outside any strategy.
    if not strategies or strategies[-1] is strategy or strategies[-1].device_assignment is None:
        return
    raise ContextError(
        f"Strategy.{method}",
        found=f"{strategy!r} was used inside the scope of {strategies[-1]!r}",
        rule="scopes and runs of different strategies cannot be nested",
        remedy="leave the other strategy's scope first, or use one strategy for both",
    )


# Errors and warnings for assignments that would make replicas, or eager and compiled runs, diverge.
#
# A variable that was created outside any scope has no copies. In an eager run, as in TensorFlow, the replicas assign it
# one after another. In a compiled run, they run at the same time, so all must assign the same value.


def would_differ_error(variable: VariableLike, where: Iterable[str], how: str) -> ReplicaDivergenceError:
    """Returns the error for an assignment that would give replicas different values of a mirrored variable.

    Args:
        variable: A mirrored variable, or one that was created outside any scope.
        where: The line where each replica assigned it; empty for a replica that did not.
        how: What differs, as the end of a sentence.
    """
    lines = ", ".join(sorted({line for line in where if line})) or "one replica only"
    kind, rule, remedy = _MIRRORED if variable.device_assignment is not None else _PLAIN
    if getattr(variable, "words_of_step", None) or getattr(variable, "is_random_state", False):
        kind, rule, remedy = "random state", _RULE_OF_DRAWS, _REMEDY_OF_DRAWS
    return ReplicaDivergenceError(
        f"{variable.name}.assign",
        found=f"{kind} {variable.name!r}, assigned at {lines}, would differ between replicas{how}",
        rule=rule,
        remedy=remedy,
    )


def warn_of_assignment_per_replica(variable: Any, where: Iterable[str], replicas: int) -> None:
    """Warns that the replicas of a `run` assign a variable that was created outside any scope.

    A compiled run updates such a variable once. In an eager run, the replicas update it one after another.

    Args:
        variable: A variable that was created outside any scope.
        where: The lines that assigned it.
        replicas: The number of replicas of the run.
    """
    lines = ", ".join(sorted({line for line in where if line}))
    warnings.warn(
        f"variable {variable.name!r}, made outside of strategy.scope(), is updated at {lines} by {replicas} replicas\n"
        "  rule:   a compiled run updates it once; in an eager run, as in TensorFlow, the replicas update it one after "
        "another\n"
        "  remedy: make it (or the model or optimizer that it belongs to) inside `with strategy.scope():`; or assign "
        "it once, outside of run",
        OutOfScopeWarning,
        stacklevel=user_stacklevel(),
    )


_REDUCE = (
    "reduce it first (get_replica_context().all_reduce(op, value); op is ReduceOp.SUM for gradients of an "
    "average_loss, ReduceOp.MEAN for a mean over the per-replica batch or its gradients)"
)
_RULE_OF_DRAWS = "each draw advances the state, so all replicas must draw equally often, in branches and loops, too"
_REMEDY_OF_DRAWS = "draw before the branch: noise = tf.random.normal(x.shape); x = tf.where(coin, x + noise, x)"
_MIRRORED = (
    "mirrored variable",
    "a mirrored variable must be equal on all replicas at all times; a value that depends on the per-replica batch, "
    "on the replica id or on per-replica state must be reduced first",
    f"{_REDUCE}, create the variable with aggregation=VariableAggregation.MEAN, or make it sync-on-read "
    "(synchronization=VariableSynchronization.ON_READ)",
)
_PLAIN = (
    "variable (made outside of strategy.scope())",
    "a variable that was made outside of strategy.scope() has one value, so all replicas must assign the same value",
    f"{_REDUCE}, or make the variable (or the metric, layer or optimizer that it belongs to) inside "
    "`with strategy.scope():`, as sync-on-read if each replica should have its own value",
)


# Warns if a step feeds its per-replica results back.


def merged_differently_error(called: str, name: str, path: str) -> MergeError:
    """Returns the error for a `merge_call` function that closes over an array that may differ between replicas."""
    return MergeError(
        called,
        found=f"the function closes over {name!r}, which would differ between replicas. How the replicas' values "
        f"diverge:\n{path}\n",
        rule="the function runs once for all replicas; what it closes over must be equal on all of them",
        remedy=f"pass it as an argument, merge_call(merge_fn, args=({name},)): the function gets a per-replica value",
    )


def warn_if_fed_back(fn: Callable[..., Any], arguments: Sequence[Any]) -> Makers:
    """Warns if a function gets the per-replica results of its own earlier `run` as arguments.

    Such a value is model state that has begun to diverge. A value that was per replica from the start is intended.

    Args:
        fn: The function passed to `run`.
        arguments: The leaves of its arguments.

    Returns:
        The functions that have turned replicated values into per-replica ones, for these arguments and in `fn`.
    """
    made_by: frozenset[Any] = frozenset()
    had_replicated = False
    for leaf in arguments:
        if not isinstance(leaf, PerReplica):
            had_replicated = had_replicated or _is_floating(leaf)
        elif leaf.made_by.functions and _is_floating(leaf.first()):
            made_by |= leaf.made_by.functions
    code = _code_of(fn)
    if code in made_by:
        name = attribute(fn, "__name__", type(fn).__name__)
        warnings.warn(
            f"Strategy.run({name}) got per-replica results of an earlier Strategy.run({name}) as arguments. If they "
            "are the state of a model, every replica trains a separate model, on its per-replica batch only. Declare "
            f"which results are equal on all replicas, which is then checked: run({name}, args=..., "
            "out_specs=(PartitionSpec(), PartitionSpec('replica'))) for a state and per-replica metrics. Reduce the "
            "gradients before the update with get_replica_context().all_reduce(op, gradients); op is ReduceOp.SUM if "
            "the loss is an average_loss, ReduceOp.MEAN if it is a mean over the per-replica batch. If each "
            "replica should keep a separate state, declare out_specs=PartitionSpec('replica').",
            DivergingStateWarning,
            stacklevel=user_stacklevel(),
        )
    return Makers(made_by | {code}) if had_replicated else Makers(made_by)


def mark_made_by(result: PyTree, functions: Makers) -> None:
    """Marks each per-replica value in a result of `Strategy.run` with the functions that computed the value."""
    for leaf in structures.flatten(result)[0]:
        if isinstance(leaf, PerReplica):
            leaf.made_by = functions


def _is_floating(value: object) -> bool:
    dtype = attribute(value, "dtype")
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def _code_of(fn: Callable[..., Any]) -> Any:
    """Returns the code object of a function, which is the same for closures and lambdas re-created at each call."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif has_attribute(fn, "__wrapped__"):
            fn = inspect.unwrap(fn)
        else:
            break
    fn = attribute(fn, "__func__", fn)
    return attribute(fn, "__code__") or type(fn)


# Refuses other meshes in a run: nested `jax.shard_map` and `jax.pmap`, shardings, arrays of a mesh with explicit axes.
#
# A compiled run is one `shard_map` over the strategy's devices, and its body is the program of one device. JAX accepts
# a nested mesh there only if it is that of the run. For others it raises errors about its own mesh, and XLA aborts the
# process if `jax.pmap` uses the devices of the run.


@contextlib.contextmanager
def explicit_axes_explained(fn: Callable[..., Any], arguments: Sequence[Any], is_traced: bool) -> Iterator[None]:
    """Context manager that replaces JAX's error for an array with explicit mesh axes by an error that names the array.

    JAX takes the axes of the array for those of the mesh of the run, and raises ``KeyError`` or ``ValueError``.

    Args:
        fn: The function passed to `run`.
        arguments: The leaves of its arguments.
        is_traced: Whether the run is compiled. Then an argument could fail only when the program is compiled. In an
            eager run a replicated argument works, and JAX accepts a sharded one after some other programs.

    Raises:
        DeviceError: `fn` closes over such an array, or it is an argument; or a replica of an eager run combines arrays
            on different devices.
    """
    _refuse_arguments(arguments, None, also_replicated=is_traced)
    try:
        yield
    except (KeyError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, MirroredError):
            raise
        _refuse_arguments(arguments, error)
        for name, key in key_of(fn).arrays:
            if _is_explicit(key.array):
                raise _explicit_axes_error(f"the function closes over {name!r}", key.array) from error
        code = attribute(fn, "__code__")
        for name in code.co_names if code is not None else ():
            value = fn.__globals__.get(name)
            if value is not None and _is_explicit(value):
                raise _explicit_axes_error(f"the function uses {name!r}", value) from error
        explained = None if is_traced else devices_of_replicas(error)
        if explained is not None:
            raise explained from error
        raise


def refuse_other_meshes(equations: Sequence[Sequence[JaxprEqn]]) -> None:
    """Raises an error if a function passed to `run` places arrays on a mesh or several devices of its own.

    Args:
        equations: The equations of the program (`equations_in`).

    Raises:
        DeviceError: It contains such an operation, in any layout of the replicas.
    """
    placement = next(placements_in(equations), None)
    if placement is None:
        return
    where = f" at {placement.line}" if placement.line else ""
    raise DeviceError(
        "Strategy.run",
        found=f"the compiled function contains {placement.what}{where}",
        rule="a replica is one program on one device, so inside run no array can be placed on several devices",
        remedy="compute on the replica's own arrays (jax.vmap in place of jax.pmap or jax.shard_map, no sharding), "
        "exchange values with get_replica_context().all_reduce or all_gather, or call the function outside of run",
    )


def refuse_differentiated(results: Sequence[Any]) -> None:
    """Raises an error for an eager run inside `jax.grad`: JAX cannot add cotangents on different devices.

    Raises:
        TransformError: A result is a tracer of such a transform.
    """
    if any(is_differentiated(leaf) for result in results for leaf in structures.flatten(result)[0]):
        raise TransformError(
            "Strategy.run",
            found="an eager run on several devices was called under jax.grad, jax.vjp or jax.jvp",
            rule="the replicas of an eager run compute on their own devices, and JAX cannot add cotangents on "
            "different devices",
            remedy="record with mirrored.GradientTape, call jax.grad inside the function given to run, or compile the "
            "whole step with mirrored.function, on per-replica batches of equal shapes: a step on others runs eagerly",
        )


def _refuse_arguments(arguments: Sequence[Any], error: Exception | None, *, also_replicated: bool = True) -> None:
    for leaf in arguments:
        if _is_explicit(leaf) and (also_replicated or not jax.typeof(leaf).sharding.is_fully_replicated):
            raise _explicit_axes_error("it was passed as an argument", leaf) from error


def _is_explicit(value: object) -> bool:
    if not isinstance(value, jax.Array):
        return False
    mesh = getattr(getattr(jax.typeof(value), "sharding", None), "mesh", None)
    return AxisType.Explicit in getattr(mesh, "axis_types", ())


def _explicit_axes_error(how: str, array: jax.Array) -> DeviceError:
    sharding = jax.typeof(array).sharding
    return DeviceError(
        "Strategy.run",
        found=f"{how}, an array {jax.typeof(array)} of the mesh {sharding.mesh}, which has explicit axes",
        rule="a run uses its own mesh, so its inputs cannot have explicit sharding (a sharding in their type)",
        remedy="copy the array before the run: jax.device_put(x, jax.devices()[0]), or create its mesh with "
        "axis_types=(jax.sharding.AxisType.Auto,)",
    )


@contextlib.contextmanager
def axis_names_explained() -> Iterator[None]:
    """Context manager that replaces JAX's error about an unbound axis name with an error that states the remedy.

    Raises:
        ContextError: JAX has raised ``NameError``, for ``jax.lax.psum(x, "replica")``, for instance.
    """
    try:
        yield
    except (NameError, NotImplementedError) as error:
        found = unbound_axis(error)
        if found is None:
            raise
        if REPLICA_AXIS in found and evaluates_constants():
            raise ContextError(
                "Strategy.run",
                found="run was called in a block of jax.ensure_compile_time_eval",
                rule="such a block evaluates the index of a device immediately, but the index is known only on the "
                "device; a run on devices with different numbers of replicas needs it",
                remedy="call run, or the compiled function that calls it, outside of the block; the replica function "
                "itself can contain such blocks",
            ) from error
        raise ContextError(
            "Strategy.run",
            found=f"the function uses {found}",
            rule="inside run, the replicas are not a mesh axis: one device may compute several replicas, and an eager "
            "run calls the replicas one after another",
            remedy="call context = mirrored.get_replica_context(), and write context.all_reduce('SUM', x) for "
            "jax.lax.psum, context.all_reduce('MEAN', x) for pmean, context.all_gather(x, axis=0) for all_gather, "
            "context.replica_id_in_sync_group for axis_index, context.num_replicas_in_sync for axis_size",
        ) from error
