"""Recomputes intermediate values of a function in the backward pass (`jax.checkpoint`); it may assign variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mirrored._jax.traces import is_eager
from mirrored._jax.trees import transformed, tree_flatten
from mirrored.errors import TransformError
from mirrored.runtime.overlay_store import collecting_assignments


def recomputed(function: Callable[..., Any], called: str) -> Callable[..., Any]:
    """Returns `function` with intermediate values recomputed in the backward pass, not stored.

    Arguments that are not arrays reach the function as they are. The variables that it assigns change once.

    Args:
        function: The function, which is traced at every call.
        called: What the user has called, for error messages.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_eager():
            return function(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        traced = [place for place, leaf in enumerate(leaves) if _is_traceable(leaf)]

        def of_arrays(arrays: list[Any]) -> Any:
            given = list(leaves)
            for place, array in zip(traced, arrays, strict=True):
                given[place] = array
            own_args, own_kwargs = structure.unflatten(given)
            return collecting(*own_args, **own_kwargs), overlay.values()

        overlay, collecting = collecting_assignments(function, recomputes=True)
        try:
            results, assigned = transformed(jax.checkpoint, of_arrays)([leaves[place] for place in traced])
        except jax.errors.UnexpectedTracerError as error:
            raise _leaked_error(called) from error
        overlay.flush(assigned)
        return results

    return run


def _leaked_error(called: str) -> TransformError:
    """Returns the error for a recomputed function that uses a value of another trace.

    JAX keeps what it has traced of a jitted function, with the tracers that the function has read from objects.
    """
    return TransformError(
        called,
        found="the function, or a function under jax.jit that it calls, uses a value that an earlier trace has stored "
        "in an attribute or container",
        rule="the function is traced at every call, and the values that it computes are valid in this trace only; JAX "
        "keeps the trace of a function under jax.jit, with the value of the attribute that it has read",
        remedy="pass the value to the function under jax.jit as an argument, and return it where it is needed outside",
    )


def _is_traceable(leaf: object) -> bool:
    """Returns whether JAX can trace an argument; False for Python numbers, which may be static options."""
    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        return False
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True
