"""Resolves the variable store of the current context, and refuses reads and writes that the context does not allow."""

from __future__ import annotations

from typing import Any

from mirrored._jax.traces import current_trace, is_eval, recording_parent
from mirrored.errors import ContextError, TransformError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.variable_store import VariableStore


def store_of(variable: Any, here: Ambient) -> VariableStore | None:
    """Returns the store that `variable` is read from and written to in this context; None means its storage.

    In an eager run the replicas share a plain variable and run one after another. It has no copies to stage, so they
    use its storage directly. The slots of an optimizer that was made outside of the scope are staged nevertheless: one
    step must update them once.
    """
    store = here.store
    if store is not None and not store.captures and variable.device_assignment is None and not variable.internal:
        return None
    return store


def eager_replica(variable: Any) -> int | None:
    """Returns the local replica index if `variable` is sync-on-read and this is an eager run, else None.

    There an assignment returns the component object, as in TensorFlow, and not an array.
    """
    here = ambient()
    eager_run = here.replica is not None and here.store is not None and not here.store.captures
    return here.replica.local_index if eager_run and variable.per_replica else None


def check_strategy(variable: Any, here: Ambient, called: str) -> None:
    """Refuses a variable that belongs to a strategy other than the current one."""
    if variable.device_assignment is None or not here.strategies or variable.strategy is here.strategies[-1]:
        return
    raise ContextError(
        called,
        found=f"variable {variable.name!r} belongs to {variable.strategy!r}, but {here.strategies[-1]!r} is current",
        rule="a run or scope uses only plain variables and variables of its own strategy",
        remedy="create the variable in the scope of the strategy that uses it",
    )


def check_readable(variable: Any, store: VariableStore | None, here: Ambient) -> None:
    """Refuses a read under a JAX transform that would turn the value into a constant of the traced program."""
    if here.listeners or (store is not None and store.captures) or is_eval(recording_parent(current_trace())):
        return
    raise TransformError(
        f"reading {variable.name}",
        found=f"the value of variable {variable.name!r} was read under a JAX transform ({_transform()})",
        rule="a transform outside mirrored.function and GradientTape would turn the value into a constant",
        remedy="use mirrored.function instead of jax.jit and GradientTape instead of jax.grad, "
        "or pass variable.read_value() as an argument",
    )


def check_writable(variable: Any, store: VariableStore | None, called: str) -> None:
    """Refuses an assignment under a transform, where it would happen during tracing and not when the program runs."""
    trace = recording_parent(current_trace())
    if trace is store.base_trace if store is not None and store.captures else is_eval(trace):
        return
    raise TransformError(
        called,
        found=f"variable {variable.name!r} was assigned under a JAX transform ({_transform()})",
        rule="an assignment inside jit, grad, scan, cond or vmap would happen once, during tracing, "
        "and not when the program runs",
        remedy="return the new value from the transformed function and assign it outside",
    )


def _transform() -> str:
    return type(recording_parent(current_trace())).__name__.removesuffix("Trace")
