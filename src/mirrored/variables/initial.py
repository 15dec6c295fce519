"""Evaluates initial values (an array, a number, a list or a callable), also inside a trace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax import jit_key
from mirrored._jax.concrete import NotConstant, evaluate
from mirrored._jax.host_memory import owned
from mirrored._jax.traces import eager
from mirrored.errors import ArgumentError, ValuesError
from mirrored.runtime.ambient import within
from mirrored.values.distributed_values import PerReplica
from mirrored.variables.kinds import check_kind


def evaluate_initial(initial_value: Any, dtype: Any, name: str | None) -> jax.Array:
    """Returns the initial value as a new array, computed eagerly even while a function is traced.

    Raises:
        ArgumentError: The value is missing, or depends on an argument of the function being traced.
        ValuesError: The value is a per-replica value.
    """
    if initial_value is None:
        raise ArgumentError(
            "Variable",
            found=f"no initial value for variable {name!r}",
            rule="a variable takes its shape and dtype from its initial value",
            remedy="write Variable(jnp.zeros(shape)), Variable(0.0) or Variable(lambda: jnp.zeros(shape))",
        )
    with eager(), jit_key.using(None), within(store=None, listeners=()):
        value = initial_value() if callable(initial_value) and not hasattr(initial_value, "dtype") else initial_value
        if isinstance(value, PerReplica):
            raise ValuesError(
                "Variable",
                found=f"a per-replica initial value for variable {name!r}",
                rule="an initial value is one array, the same for all replicas",
                remedy="reduce it first, or create a sync-on-read variable and assign each component inside run",
            )
        try:
            value = evaluate(value, _stored_value)
        except NotConstant:
            raise ArgumentError(
                "Variable",
                found=f"the initial value of variable {name!r} depends on a value that is being traced",
                rule="a variable created inside a function is initialized once, before the function runs",
                remedy="pass a callable that computes it from constants: Variable(lambda: jnp.zeros(shape))",
            ) from None
        if dtype is not None:
            check_kind(value, dtype, "Variable", name)
        array = jnp.array(owned(value), dtype=dtype, copy=True)
        # A Python number gives a weakly typed array. Assigned values are not weakly typed, and the change of type would
        # cause one unnecessary retrace of every function that captures the variable.
        return array.astype(array.dtype) if getattr(array, "weak_type", False) else array


def _stored_value(source: Any) -> Any:
    """Returns the stored value of a captured variable (its first replica's component)."""
    variable = getattr(source, "variable", source)
    return variable.stored_component(0)
