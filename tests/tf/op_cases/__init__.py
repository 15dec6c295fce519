"""Cases for the table of operations: a name, what it is given, what TensorFlow documents (or NumPy computes) for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    op: str  # the operation's first name in the table
    expected: Any  # a structure of numbers, or a predicate of the result
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    traced: bool  # whether NumPy arguments may be traced
    rtol: float

    @property
    def id(self) -> str:
        return self.op


def case(op: str, expected: Any, *args: Any, traced: bool = True, rtol: float = 1e-5, **kwargs: Any) -> Case:
    """One case. NumPy arrays among the arguments are traced when the case runs compiled, lists stay constants."""
    return Case(op, expected, args, kwargs, traced, rtol)


def f(*values: Any) -> np.ndarray:
    """float32: f(1, 2) is a vector, f([[1, 2]]) what it says."""
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def i(*values: Any) -> np.ndarray:
    """int32."""
    return np.array(values[0] if len(values) == 1 else values, np.int32)


def b(*values: Any) -> np.ndarray:
    """bool."""
    return np.array(values[0] if len(values) == 1 else values, bool)
