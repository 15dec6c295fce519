"""The form in which a checkpoint stores numbers and arrays without dims, so that a restore returns their own types.

A NumPy scalar and a Python number of equal value differ in later arithmetic, as do weakly and strongly typed arrays.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_types import keeping_width, weakly_typed
from mirrored._jax.arrays import owned
from mirrored._typing import Array, HostArray
from mirrored.checkpoint.json_state import decode, encode
from mirrored.checkpoint.saved import PYTHON, Saved

_NUMBERS: Final = (bool, int, float, complex, np.generic)
_KINDS: Final = (np.bool_, np.integer, np.floating, np.complexfloating)


def is_number(value: object) -> bool:
    """Returns whether `value` is a Python number or a NumPy scalar."""
    return isinstance(value, _NUMBERS) and not (isinstance(value, np.generic) and value.dtype.kind in "OSUMm")


def saved_number(value: object, key: str | int | None = None) -> Saved:
    """Returns a number in the form that checkpoints store: as a Python number, with its type.

    Args:
        value: The number.
        key: Its key in a dict of Python.
    """
    if isinstance(value, np.generic):
        return Saved("number", dtype=_name_of(value), value=encode(value.item(), "a number"), key=key)
    return Saved("number", dtype=PYTHON, value=encode(value, "a number"), key=key)


def _name_of(scalar: np.generic) -> str:
    return "" if type(scalar) is np.void else str(scalar.dtype)


def number_of(saved: Saved) -> Any:
    """Returns a saved number with the type that it had; checkpoints of earlier versions have Python numbers."""
    value = decode(saved.value)
    return value if saved.dtype in ("", PYTHON) else np.dtype(saved.dtype).type(value)


def array_type(array: Array | HostArray) -> str:
    """Returns the type of an array as checkpoints store it: ``numpy``, ``jax`` or ``weak jax``."""
    if isinstance(array, np.ndarray):
        return "numpy"
    return "weak jax" if getattr(array, "weak_type", False) else "jax"


def is_scalar_array(saved: Saved) -> bool:
    """Returns whether a saved value is an array without dims whose type is known, and that was no variable."""
    return saved.kind == "array" and saved.shape == () and bool(saved.array_type)


def scalar_array(saved: Saved) -> jax.Array | np.ndarray[Any, Any]:
    """Makes a saved array without dims, of the type that it had."""
    if saved.array_type == "numpy":
        return np.array(saved.one())
    with keeping_width(saved.dtype):
        made = jnp.asarray(owned(saved.one()))
        return weakly_typed(made) if saved.array_type == "weak jax" else made


def is_at_most(saved: Saved, dtype: str) -> bool:
    """Returns whether the kind of a saved number or array is that of `dtype` or a narrower one, whatever its width.

    The kinds are bool, int, float and complex. A float for an int is rather a mistake of the program.
    """
    own = saved.dtype if saved.dtype != PYTHON else type(decode(saved.value))
    return _rank(np.dtype(own)) <= _rank(np.dtype(dtype))


def _rank(dtype: np.dtype[Any]) -> int:
    return next((rank for rank, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), len(_KINDS))
