"""Pairwise summation by a balanced binary tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def sum_pairs(values: Sequence[Any]) -> list[Any]:
    """Adds adjacent pairs: one level of the tree. An unpaired last value is passed through."""
    paired = [one + other for one, other in zip(values[::2], values[1::2], strict=False)]
    return paired + list(values[len(paired) * 2 :])


def tree_sum(values: Sequence[Any]) -> Any:
    """Sums `values` by a balanced binary tree over their order.

    The rounding error grows with the logarithm of the number of values.

    Source: N. J. Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14 (1993):
    pairwise summation.
    """
    values = list(values)
    while len(values) > 1:
        values = sum_pairs(values)
    return values[0]
