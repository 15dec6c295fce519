"""Checks the dtype of assigned values: a cast to the variable's dtype must keep the kind of number."""

from __future__ import annotations

from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored._jax.keys import is_key_dtype
from mirrored.errors import VariableError

_KINDS: Final[tuple[Any, ...]] = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def check_kind(value: Any, wanted: Any, called: str, name: str | None) -> None:
    """Refuses a value that would lose its fraction, its imaginary part or its magnitude in a cast to dtype `wanted`.

    Python numbers, also in lists, follow the rule of arrays of their kind.

    Raises:
        VariableError: The value is of a kind that cannot be kept (2.7 for an integer variable).
    """
    given = _dtype_of(value)
    if given is None or _casts(given, wanted):
        return
    what = f"a value of dtype {given}" if hasattr(value, "dtype") else f"{value!r}"
    raise VariableError(
        called,
        found=f"{what} for variable {name!r} of dtype {wanted}",
        rule="a value is cast only where its kind is kept (float to float, int to int or float)",
        remedy="assign random keys of the same implementation: jax.random.key(seed)"
        if is_key_dtype(wanted)
        else f"cast it on purpose: jnp.asarray(value).astype({str(jnp.dtype(wanted))!r})",
    )


def _dtype_of(value: Any) -> Any:
    """Returns the dtype of an array, of a Python number, or the widest one in a list; None for any other object."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return dtype
    if isinstance(value, bool | int | float | complex):
        return np.dtype(type(value))
    if isinstance(value, list | tuple):
        inside = [dtype for dtype in map(_dtype_of, value) if _rank(dtype) is not None]
        return max(inside, key=lambda dtype: _rank(dtype) or 0, default=None)
    return None


def _rank(dtype: Any) -> int | None:
    if dtype is None:
        return None
    return next((i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), None)


def _casts(given: Any, wanted: Any) -> bool:
    ranks = _rank(given), _rank(wanted)
    if ranks[0] is None or ranks[1] is None:
        return bool(given == wanted)
    return ranks[0] <= ranks[1]
