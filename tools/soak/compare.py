"""Compares a program's result with that of one device. Standalone scripts contain this text: NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(found: Any, wanted: Any, where: str = "") -> str | None:
    """Returns the first difference of two JSON-like values: numbers to 2e-4 of the norm, everything else exactly.

    None among losses or examples stands for the result of an interrupted step.

    Args:
        found: The result of the program.
        wanted: The expected result; names that it lacks are not compared.
        where: The path to both, for the message.

    Returns:
        One line, or None if they are equal.
    """
    if isinstance(wanted, dict):
        parts = [difference(found.get(name), wanted[name], f"{where}/{name}") for name in wanted]
        return next((part for part in parts if part), None)
    if where == "/seen":
        return _of_examples(found, wanted)
    if where == "/losses" and found is not None and len(found) == len(wanted):
        known = [k for k, loss in enumerate(found) if loss is not None]
        found, wanted = [found[k] for k in known], [wanted[k] for k in known]
    if isinstance(wanted, str) or isinstance(found, str) or wanted is None or found is None:
        same = isinstance(found, type(wanted)) and found == wanted  # an array has no single truth value
        return None if same else f"{where}: {found}, expected {wanted}"
    if any(one is None for one in _flat(wanted)):
        return _of_parts(found, wanted, where)
    left, right = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if left.shape != right.shape:
        return f"{where}: {left.tolist()}, expected {right.tolist()}"
    distance = np.linalg.norm((left - right).ravel())
    # This form of the condition also fails for a NaN on either side.
    if not distance <= 2e-4 * np.linalg.norm(right.ravel()) + 1e-5:
        return f"{where}: {np.round(left, 5).tolist()}, expected {np.round(right, 5).tolist()}"
    return None


def _flat(value: Any) -> list[Any]:
    return [part for one in value for part in _flat(one)] if isinstance(value, list) else [value]


def _of_parts(found: Any, wanted: list[Any], where: str) -> str | None:
    if len(found) != len(wanted):
        return f"{where}: {found}, expected {wanted}"
    parts = (difference(a, b, f"{where}[{k}]") for k, (a, b) in enumerate(zip(found, wanted, strict=True)))
    return next((part for part in parts if part), None)


def _of_examples(found: Any, wanted: Any) -> str | None:
    """Compares each step's examples, in order; those of a step whose result was lost are unknown."""
    if found is None or len(found) != len(wanted):
        return f"/seen: {found}, expected {wanted}"
    for step, (rows, order) in enumerate(zip(found, wanted, strict=True)):
        if rows is not None and rows != order:
            return f"/seen: step {step} trained on examples {rows}, expected {order}"
    return None
