"""Balanced sums: pairs of neighbours first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def sum_pairs(values: Sequence[Any]) -> list[Any]:
    """One level: neighbours added; a last one without a neighbour is passed on."""
    paired = [one + other for one, other in zip(values[::2], values[1::2], strict=False)]
    return paired + list(values[len(paired) * 2 :])


def tree_sum(values: Sequence[Any]) -> Any:
    """The sum of `values` by a balanced binary tree over their order.

    Its rounding error grows with the logarithm of their number. Source: N. J. Higham, "The accuracy of floating point
    summation", SIAM J. Sci. Comput. 14 (1993), pairwise summation.
    """
    values = list(values)
    while len(values) > 1:
        values = sum_pairs(values)
    return values[0]
