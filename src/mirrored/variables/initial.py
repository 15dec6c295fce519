"""Initial values: an array, a number, a list, a callable; also inside a trace."""

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
    """The initial value as an array of its own, computed at once whatever is being traced.

    Raises:
        ArgumentError: There is no value, or it depends on an argument of the function being traced.
    """
    if initial_value is None:
        raise ArgumentError(
            "Variable",
            found=f"no initial value for variable {name!r}",
            rule="a variable is created with a value, which gives its shape and dtype",
            remedy="Variable(jnp.zeros(shape)), Variable(0.0) or Variable(lambda: jnp.zeros(shape))",
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
                rule="a variable made inside a function gets its initial value once, before the function runs",
                remedy="give a callable that computes it from constants: Variable(lambda: jnp.zeros(shape))",
            ) from None
        if dtype is not None:
            check_kind(value, dtype, "Variable", name)
        array = jnp.array(owned(value), dtype=dtype, copy=True)
        # A Python number makes an array of weak type, what is assigned later is none: a second trace for nothing.
        return array.astype(array.dtype) if getattr(array, "weak_type", False) else array


def _stored_value(source: Any) -> Any:
    """The value of a captured variable (its first replica's component) as it is in storage."""
    variable = getattr(source, "variable", source)
    return variable.stored_component(0)
