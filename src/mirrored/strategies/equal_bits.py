"""Compares the values of the replicas of an eager run bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrored._jax.arrays import key_data
from mirrored.strategies.checks import would_differ

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable


def bits_of(value: object) -> bytes:
    """Returns the dtype, shape and bits of an array on one device."""
    array = np.asarray(key_data(value))
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def check_equal_bits(variable: Variable, components: Sequence[Any], where: Sequence[str]) -> None:
    """Checks that replicas have assigned equal values to a mirrored variable.

    Args:
        variable: The variable.
        components: Each replica's value.
        where: The line of each replica's assignment; empty if it has none.

    Raises:
        ReplicaDivergenceError: The bits differ.
    """
    bits = [bits_of(component) for component in components]
    if all(one == bits[0] for one in bits):
        return
    components = [key_data(component) for component in components]
    found = ", ".join(
        f"replica {i}: {np.array2string(np.asarray(c), threshold=4)}" for i, c in enumerate(components[:4])
    )
    missing = [i for i, line in enumerate(where) if not line]
    unassigned = f"; replicas {missing} did not assign it" if missing else ""
    raise would_differ(variable, where, f": {found}{unassigned}")
