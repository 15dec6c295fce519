"""Stores the state that `fit` returns without a copy, if it already has the variable's sharding.

`fit` carries the state itself and assigns all of it to the model at the end of each epoch, often more frequently. With
the copies and checks of an ordinary assignment, that took a fifth of a short epoch.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.traces import is_tracer
from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable, VariableAggregation

_from_fit: contextvars.ContextVar[bool] = contextvars.ContextVar("_from_fit", default=False)


def from_fit(sync: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that assigns the state of `fit` to the model. Nothing else references these arrays."""

    @functools.wraps(sync)
    def syncing(self: Any) -> Any:
        token = _from_fit.set(True)
        try:
            return sync(self)
        finally:
            _from_fit.reset(token)

    return syncing


def stored_at_once(made: Variable, value: Any) -> bool:
    """Stores `value` and returns True if it needs none of the steps of an ordinary assignment, else returns False."""
    here, device_assignment = ambient(), made.device_assignment
    if (
        here.store is not None
        or here.replica is not None
        or device_assignment is None
        or device_assignment.spans_processes
    ):
        return False
    if not isinstance(value, jax.Array) or is_tracer(value):
        return False
    if (value.shape, value.dtype) != (made.shape, made.dtype):
        return False
    if value.is_deleted():  # Donated to a step that failed.
        made.store(value)
        lose_deleted(made)
        return True
    if made.per_replica:
        return _store_components(made, value)
    if not (_from_fit.get() and value.sharding.is_equivalent_to(device_assignment.replicated, value.ndim)):
        return False
    made.store(value)
    return True


def lose_deleted(variable: Variable) -> None:
    """Marks a variable as lost if its value was donated to a step that failed."""
    value = variable.initial()
    if isinstance(value, jax.Array) and value.is_deleted():
        variable.lose("it was donated to a step of fit that did not end")


def _store_components(made: Variable, value: Any) -> bool:
    """Stores the value as one component per replica, in one compiled call. A sum is divided into equal parts.

    With `deterministic=True` the first replica gets the whole sum, because the sum of three thirds is not always
    bit-identical to the whole.
    """
    is_sum = made.aggregation is VariableAggregation.SUM
    floating = jnp.issubdtype(made.dtype, jnp.floating)
    if not (floating and (is_sum or made.aggregation is VariableAggregation.MEAN)):
        return False
    if not value.sharding.device_set <= set(made.device_assignment.devices):
        return False
    how = "copies" if not is_sum else "first" if getattr(made.strategy, "deterministic", False) else "parts"
    whole = jax.device_put(value, made.device_assignment.replicated)
    made.store(_spread(made.num_replicas, how, made.device_assignment.sharded)(whole))
    return True


@functools.lru_cache(maxsize=64)
def _spread(replicas: int, how: str, sharding: Any) -> Callable[[Any], Any]:
    def spread(value: Any) -> Any:
        if how == "first":
            return jnp.zeros((replicas, *value.shape), value.dtype).at[0].set(value)
        part = value / replicas if how == "parts" else value
        return jnp.broadcast_to(part, (replicas, *value.shape))

    return jax.jit(spread, out_shardings=sharding)
