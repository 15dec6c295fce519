"""Digests of traced programs, equal in all processes that have traced the same program.

Supports JAX 0.10 to 0.12. Printed jaxprs contain addresses and are slow to create (50 us per equation); a digest takes
about 10 us per equation.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype, np.generic)
_LARGEST_BYTES = 1 << 20


def digest_of(jaxpr: Any, constants: Sequence[Any] = ()) -> str:
    """Returns a short digest that differs between programs with different computations.

    Args:
        jaxpr: The program. The digest covers operations, types, parameters of plain types, literals and dataflow.
        constants: The captured values. The digest covers their shapes and dtypes, and the bits of small NumPy arrays.
    """
    made = hashlib.blake2b(digest_size=12)
    _add(made, jaxpr, constants)
    return made.hexdigest()


def captured_arrays(jaxpr: Any, constants: Sequence[Any] = ()) -> list[Any]:
    """Returns the captured arrays of this process whose bits `digest_of` does not cover, in program order.

    Args:
        jaxpr: The program. Inner programs (`jax.jit`, `jax.lax.scan`) have their own constants.
        constants: The constants of the outermost program.
    """
    found = [one for one in constants if not _is_small(one) and _is_own_array(one)]
    for equation in jaxpr.eqns:
        for _, value in sorted(equation.params.items()):
            for inner in _programs_in(value):
                found += captured_arrays(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()))
    return found


def _is_small(constant: Any) -> bool:
    return isinstance(constant, (np.ndarray, np.generic)) and constant.nbytes <= _LARGEST_BYTES


def _is_own_array(constant: Any) -> bool:
    if isinstance(constant, jax.Array):
        return not isinstance(constant, jax.core.Tracer) and constant.is_fully_addressable
    return isinstance(constant, np.ndarray)


def _programs_in(value: Any) -> list[Any]:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return [value]
    if isinstance(value, (tuple, list)):
        return [inner for one in value for inner in _programs_in(one)]
    return []


def _add(made: Any, jaxpr: Any, constants: Sequence[Any] = ()) -> None:
    constants = constants or getattr(jaxpr, "consts", ())
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # a closed one
    for constant in constants:
        made.update(repr((np.shape(constant), str(getattr(constant, "dtype", "")))).encode())
        if _is_small(constant):
            made.update(np.ascontiguousarray(constant).tobytes())
    numbers: dict[Any, int] = {}
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        made.update(f"{_atom(variable, numbers)}:{variable.aval};".encode())
    for equation in jaxpr.eqns:
        made.update(f"{equation.primitive.name}({','.join(_atom(atom, numbers) for atom in equation.invars)})".encode())
        for name, value in sorted(equation.params.items()):
            made.update(f"{name}=".encode())
            _add_parameter(made, value)
        made.update(";".join(f"{_atom(atom, numbers)}:{atom.aval}" for atom in equation.outvars).encode())
    made.update(",".join(_atom(atom, numbers) for atom in jaxpr.outvars).encode())


def _atom(atom: Any, numbers: dict[Any, int]) -> str:
    if isinstance(atom, Literal):
        return f"{atom.val!r}:{atom.aval}"
    return str(numbers.setdefault(atom, len(numbers)))


def _add_parameter(made: Any, value: Any) -> None:
    """Adds plain values and inner programs. For other values, adds only the type: their text may contain an address."""
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        _add(made, value)
    elif isinstance(value, (tuple, list)):
        made.update(b"(")
        for one in value:
            _add_parameter(made, one)
        made.update(b")")
    elif isinstance(value, Mapping):
        _add_parameter(made, [item for pair in value.items() for item in pair])
    elif isinstance(value, _PLAIN) or isinstance(value, enum.Enum):
        made.update(repr(value).encode())
    else:
        made.update(type(value).__name__.encode())
