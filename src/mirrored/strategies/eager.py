"""Executes `Strategy.run` eagerly, with one or several replicas, or nested in a trace or `merge_call`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mirrored._jax import caches
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import current_trace, put_trace
from mirrored.collectives.host_allgather import host_allgather
from mirrored.errors import ContextError
from mirrored.runtime.ambient import ambient, thread, within
from mirrored.runtime.rollback import with_rollback
from mirrored.strategies.declared_results import OutSpecs
from mirrored.strategies.eager_equality import is_number
from mirrored.strategies.eager_runner import EagerRunner
from mirrored.values import structures
from mirrored.variables.state_lock import assignment_lock

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy

_FLAG: Final = "xla_gpu_deterministic_ops"


def run_eager(
    strategy: Strategy, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], specs: OutSpecs
) -> Any:
    """Executes one eager `Strategy.run`; stores all assignments of its replicas at the end, or none.

    After an exception, the strategy's variables have their values from before the run; after an interrupt, such as
    Ctrl-C, that comes when the assignments are stored already, those from after it. Plain variables, whose assignments
    are not staged, keep what was assigned (`runtime.variable_store`).
    """
    runner = EagerRunner(strategy)
    if strategy.cross_device_ops.requires_bit_identity:
        warn_of_kernels(runner.device_assignment.devices[0].platform)
    here, trace = ambient(), current_trace()
    try:
        with assignment_lock():
            if runner.device_assignment.spans_processes:
                name = getattr(fn, "__qualname__", type(fn).__name__)
                has_numbers = any(map(is_number, structures.flatten((tuple(args), dict(kwargs)))[0]))
                runner.has_outer_numbers = any(host_allgather("Strategy.run", f"run {name} eagerly", has_numbers))
            result = runner.run_replicas(fn, args, kwargs, specs)
            for value, own, error in runner.unchanged:
                if not np.array_equal(value, own):
                    raise error
            with within(runner=runner):
                runner.commit()
    finally:
        # An exception that a signal handler raises may skip the exits of context managers.
        thread.current = here
        put_trace(trace)
    return result


def warn_of_kernels(platform: str) -> None:
    """Warns that eager operations on GPUs are not reproducible unless an XLA flag is set for the process.

    Convolutions and scatters have kernels with atomic additions. Compiled programs exclude them by compiler options,
    which JAX does not take for eager operations.
    """
    if platform != "gpu" or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    warnings.warn(
        "Strategy.run: an eager run with deterministic=True on GPUs, where convolutions and scatters can differ in the "
        "last bits from run to run\n"
        "  rule:   compiled programs select reproducible kernels; eager operations need a flag of XLA for that\n"
        "  remedy: compile the step with mirrored.function, on per-replica batches of equal shapes (last_batch='pad' "
        f"or 'drop'): a step on others runs eagerly; or set XLA_FLAGS=--{_FLAG}=true before JAX starts",
        UserWarning,
        stacklevel=user_stacklevel(),
    )


def run_alone(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Executes an eager `Strategy.run` with a single replica; undoes its variable assignments after an exception."""
    here, trace = ambient(), current_trace()
    try:
        with assignment_lock():
            return with_rollback(lambda: fn(*args, **kwargs))
    finally:
        # An exception that a signal handler raises may skip the exits of context managers.
        thread.current = here
        put_trace(trace)


def run_plainly(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls `fn` directly, as the default strategy does with its single replica."""
    return fn(*args, **kwargs)


def run_inside(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Executes a one-replica `run` inside a trace or another `run`; after an exception, undoes variable assignments."""
    # The token of an own run, as in `run_compiled`: a helper may close over an array that this run has stored in a
    # module's attribute, and a later run must not reuse that trace.
    with caches.for_replica(*caches.replica_tokens(1)):
        return with_rollback(lambda: fn(*args, **kwargs))


def nested_run(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], specs: OutSpecs) -> Any:
    """Executes a `Strategy.run` that is called inside `merge_call`, as part of the outer `run`.

    It uses the replicas of the outer run, and sees the assignments that the outer run has not committed yet.
    """
    if specs.is_given:
        raise ContextError(
            "Strategy.run",
            found="out_specs was passed to a run inside merge_call",
            rule="only the outermost run can declare which of its results are replicated",
            remedy="omit out_specs here, or reduce the result over replicas: strategy.reduce(op, result, axis=None)",
        )
    runner: Any = ambient().runner
    return with_rollback(lambda: runner.run_replicas(fn, args, kwargs))
