"""Where a variable is read and written, and where it may not be."""

from __future__ import annotations

from typing import Any

from mirrored._jax.traces import current_trace, is_eval, recording_parent
from mirrored.errors import ContextError, TransformError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.variable_store import VariableStore


def store_of(variable: Any, here: Ambient) -> VariableStore | None:
    """Where `variable` is read and written in this context; None is its storage.

    A plain variable used by an eager run is shared by the replicas, which run one after another: it has no copies to
    stage. The slots of an optimizer that was made out of scope are staged all the same: one step updates them once.
    """
    store = here.store
    if store is not None and not store.captures and variable.device_assignment is None and not variable.internal:
        return None
    return store


def eager_replica(variable: Any) -> int | None:
    """The replica of an eager run, for a sync-on-read variable: there an assignment gives the component itself."""
    here = ambient()
    eager_run = here.replica is not None and here.store is not None and not here.store.captures
    return here.replica.local_index if eager_run and variable.per_replica else None


def check_strategy(variable: Any, here: Ambient, called: str) -> None:
    """Refuses a variable of another strategy than the current one."""
    if variable.device_assignment is None or not here.strategies or variable.strategy is here.strategies[-1]:
        return
    raise ContextError(
        called,
        found=f"variable {variable.name!r} belongs to {variable.strategy!r}, this code to {here.strategies[-1]!r}",
        rule="a run or scope uses variables of its own strategy (and plain ones)",
        remedy="make the variable in the scope of the strategy that uses it",
    )


def check_readable(variable: Any, store: VariableStore | None, here: Ambient) -> None:
    """Refuses a read that a bare transform would bake in as a constant."""
    if here.listeners or (store is not None and store.captures) or is_eval(recording_parent(current_trace())):
        return
    raise TransformError(
        f"reading {variable.name}",
        found=f"the value of variable {variable.name!r} was read under a JAX transform ({_transform()})",
        rule="a transform outside mirrored.function and GradientTape would bake the value in as a constant",
        remedy="use mirrored.function in place of jax.jit and GradientTape in place of jax.grad, "
        "or pass variable.read_value() as an argument",
    )


def check_writable(variable: Any, store: VariableStore | None, called: str) -> None:
    """Refuses an assignment under a transform that would do it while tracing only."""
    trace = recording_parent(current_trace())
    if trace is store.base_trace if store is not None and store.captures else is_eval(trace):
        return
    raise TransformError(
        called,
        found=f"variable {variable.name!r} was assigned under a JAX transform ({_transform()})",
        rule="an assignment inside jit, grad, scan, cond or vmap would happen once while tracing, "
        "not when the program runs",
        remedy="return the new value from the transformed function and assign it outside",
    )


def _transform() -> str:
    return type(recording_parent(current_trace())).__name__.removesuffix("Trace")
