"""Checks a compiled program's devices and ordered printing, and explains JAX's errors about unknown traced values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import jax

from mirrored._jax.source_lines import is_of_users
from mirrored._jax.traces import CaptureTracer, Tracer
from mirrored.compilation.dispatch import explained_error, first_line
from mirrored.errors import ContextError, MirroredError, TransformError

if TYPE_CHECKING:
    from mirrored.runtime.variable_store import FunctionStore
    from mirrored.topology.device_assignment import DeviceAssignment


_OF_TRACERS: Final = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""JAX's errors for Python code that needs the value of a traced array."""

_DECISIONS: Final = (
    "mirrored.function: Python code used a value that is known only when the compiled program runs "
    "(an `if`, `while`, `float()` or `int()` on an array, a variable or replica_id_in_sync_group, or one of them as an "
    "axis or size).\n"
    "  rule:   a function is traced once; its Python code runs only during tracing, on tracers\n"
    "  remedy: jnp.where or jax.lax.cond for `if`, jax.lax.while_loop for `while`, Python ints for axes and sizes; or "
    "run eagerly (mirrored.run_functions_eagerly(True), or without mirrored.function)"
)
_MASKS: Final = (
    "mirrored.function: an array was indexed by a boolean mask whose values are known only when the program runs.\n"
    "  rule:   a function is traced once, so no shape may depend on values, as that of x[mask] does\n"
    "  remedy: jnp.where(mask, x, 0), jnp.sum(x, where=mask) or x.at[mask].set(value), which keep the shape; size= of "
    "jnp.nonzero; or run eagerly (mirrored.run_functions_eagerly(True), or without mirrored.function)"
)
"""The explanation of errors about boolean masks."""

_TRACED: Final = re.compile(r"<[^<>]*\(being traced\)>")


_OF_FORWARD_MODE: Final = "can't apply forward-mode autodiff"
_OF_JAXLIB: Final = "Non-hashable static arguments"  # raised by C++ code, which has no Python frame


@contextmanager
def explaining_uses(called: str) -> Iterator[None]:
    """Context manager that adds an explanation to JAX's errors about code that needs a tracer's concrete value."""
    try:
        yield
    except _OF_TRACERS as error:
        error.add_note(_MASKS if isinstance(error, jax.errors.NonConcreteBooleanIndexError) else _DECISIONS)
        raise
    except (TypeError, ValueError) as error:
        explained = _explained_use(called, error)
        if explained is None:
            raise
        raise explained from error


def _explained_use(called: str, error: Exception) -> TransformError | None:
    """Converts JAX's error for a variable in place of a Python number (an axis, a size) to a `TransformError`.

    JAX hashes such arguments, or compares them with numbers, so its message does not name the rule. Returns None for
    any other error.
    """
    found = _TRACED.search(str(error))
    if found is None or isinstance(error, MirroredError):
        return None
    if is_of_users(error) and not str(error).startswith(_OF_JAXLIB):
        return None
    return TransformError(
        called,
        found=f"{found[0]} was used where Python code or JAX needs a number: {first_line(error)}",
        rule="a variable's value is not known while a function is traced; axes, sizes, repetitions and shapes must be "
        "Python ints, which become a part of the program",
        remedy="keep the number in a Python int, which may be read before, outside of the function: "
        "int(variable.numpy()); or run eagerly (mirrored.run_functions_eagerly(True))",
    )


@contextmanager
def explaining_forward_mode(called: str, store: FunctionStore) -> Iterator[None]:
    """Context manager that explains JAX's error for forward-mode autodiff of a `deterministic=True` run in a trace."""
    try:
        yield
    except TypeError as error:
        explained = _forward_mode_error(called, error, store)
        if explained is None:
            raise
        raise explained from error


def _forward_mode_error(called: str, error: TypeError, store: FunctionStore) -> TransformError | None:
    if not store.bit_identical or _OF_FORWARD_MODE not in str(error) or isinstance(error, MirroredError):
        return None
    return TransformError(
        called,
        found="forward-mode autodiff (jax.jvp, jax.jacfwd, jax.hessian) in a function with a run of a strategy with "
        "deterministic=True",
        rule="the fixed-order sums of such a run, like all jax.custom_vjp functions, have derivatives in reverse mode "
        "only",
        remedy="use jax.jacrev instead of jax.jacfwd, jax.jacrev(jax.grad(f)) instead of jax.hessian(f), or a tape; "
        "jax.jvp may be called in the replica function",
    )


def explained_failure(called: str, error: BaseException, store: FunctionStore) -> MirroredError | None:
    """Converts an error that JAX raises when it compiles or calls a program to ours; returns None for any other error.

    Args:
        called: What the user called, for messages.
        error: The error.
        store: The variable store of the program.
    """
    if isinstance(error, TypeError) and (forward := _forward_mode_error(called, error, store)) is not None:
        return forward
    if isinstance(error, ValueError) and "compiler_options" in str(error):
        return _nesting_error(called)
    return explained_error(called, error)


def _nesting_error(called: str) -> TransformError:
    """Returns the error to raise if a `deterministic=True` run is called while JAX traces another program."""
    return TransformError(
        called,
        found="it contains a run with deterministic=True, and was called while JAX traces another program (`jax.jit`, "
        "a loop or branch of `jax.lax`; with JAX 0.10 also `jax.grad`)",
        rule="XLA compiles such a function as a program of its own; as a part of another one its bits would depend on "
        "the number of devices",
        remedy="call it outside of `jax.jit`, or replace `jax.jit` by `mirrored.function` and `jax.grad` by a tape",
    )


def check_devices(called: str, store: FunctionStore, variables: Sequence[Any]) -> Any:
    """Checks that all `Strategy.run` calls and variables of a program use the same devices.

    Returns:
        A device assignment of these devices; None if the program uses no strategy.

    Raises:
        ContextError: The runs and variables belong to strategies on different devices.
    """
    owners: dict[Any, Any] = {one.device_assignment: one for one in variables if one.device_assignment}
    if store.device_assignment is not None:
        owners.setdefault(store.device_assignment, None)
    if len({tuple(one.devices) for one in owners}) > 1:
        named = (
            "a run of another strategy" if one is None else f"variable {one.name!r} of {one.strategy!r}"
            for one in {tuple(assignment.devices): owner for assignment, owner in owners.items()}.values()
        )
        raise ContextError(
            called,
            found=f"the function uses {' and '.join(named)}, which are on different devices",
            rule="a compiled function is one program, so it can use the devices of one strategy only",
            remedy="write one function for each strategy, and pass values between them as arrays on the host",
        )
    return next(iter(owners), None)


def check_ordered(called: str, store: FunctionStore, variables: Sequence[Any]) -> None:
    """Raises an error if a program with several replicas uses debug printing with ``ordered=True``, even on one device.

    Raises:
        ContextError: There are several replicas.
    """
    assignments = [store.device_assignment, *(variable.device_assignment for variable in variables)]
    replicas = max((one.num_replicas for one in assignments if one is not None), default=1)
    if replicas > 1:
        raise ContextError(
            called,
            found=f"jax.debug.print or jax.debug.callback has ordered=True, in a compiled function of {replicas} "
            "replicas",
            rule="JAX can order these calls on one device only; mirrored refuses them for several replicas on any "
            "number of devices",
            remedy="omit ordered=True, or call jax.experimental.io_callback(function, None, x, ordered=True), which "
            "keeps the order of each replica's calls",
        )


def several_processes(store: FunctionStore, variables: Sequence[Any]) -> Any:
    """Returns the first device assignment of a program and its variables that spans several processes, or None."""
    device_assignments = [store.device_assignment, *(variable.device_assignment for variable in variables)]
    return next(
        (
            device_assignment
            for device_assignment in device_assignments
            if device_assignment is not None and device_assignment.spans_processes
        ),
        None,
    )


def sharding_of(device_assignment: DeviceAssignment | None, per_replica: bool) -> Any:
    """Returns the sharding of a program's result, or None: XLA chooses it."""
    if device_assignment is None:
        return None
    return device_assignment.sharded if per_replica else device_assignment.replicated


def is_outer(constant: object) -> bool:
    """Returns whether a constant of the jaxpr is a tracer of an enclosing trace, or an array that spans processes.

    Such a constant must become an operand of the program, as a variable does. An enclosing trace is, for example, that
    of a `jax.jit` around the call.
    """
    if isinstance(constant, Tracer):
        return not isinstance(constant, CaptureTracer)
    return isinstance(constant, jax.Array) and not constant.is_fully_addressable


def refuse_rerun(name: str, donated: Sequence[Any]) -> None:
    """Raises an error if JAX runs a program again, to find the operation that computed a NaN, without its inputs.

    Under `jax_debug_nans` and `jax_debug_infs`, JAX executes a program whose results contain an invalid value a second
    time, operation by operation. It has no donated inputs then, unless `jax_debug_nans` was set before it compiled the
    program: JAX donates nothing under this setting.

    Args:
        name: The name of the function.
        donated: The operands that the program donates.

    Raises:
        FloatingPointError: The first execution has deleted an operand.
    """
    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):
        return
    if any(not isinstance(operand, Tracer) and operand.is_deleted() for operand in donated):
        raise FloatingPointError(
            f"mirrored.function: invalid value (nan or inf) encountered in a result or new variable value of {name}\n"
            "  rule:   JAX names the operation by running the function again, which needs the old values of variables; "
            "a compiled step has reused their memory\n"
            f"  remedy: to find the operation, compile with mirrored.function({name}, donate=False), which also keeps "
            "the old values"
        )
