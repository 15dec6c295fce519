"""Checks that operations which TensorFlow defines for real numbers only get no complex ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def refuse_complex(*operands: object) -> None:
    """Raises TypeError if an operand is complex: TensorFlow refuses it, JAX compares the real parts, then the others.

    The operation that calls it converts the error to an `InvalidArgumentError`, which names the operation.
    """
    for one in operands:
        if isinstance(one, complex) or getattr(getattr(one, "dtype", None), "kind", "") == "c":
            raise TypeError("it is defined for real numbers only; pass tf.abs, tf.math.real or tf.math.imag of them")


def of_reals(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of arrays to raise TypeError for complex ones."""

    @functools.wraps(function)
    def checked(*operands: Any, **options: Any) -> Any:
        refuse_complex(*operands)
        return function(*operands, **options)

    return checked
