"""Covering arrays: few combinations in which every combination of any `strength` factors occurs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def covering_array(
    factors: Mapping[str, Sequence[Any]], strength: int, allowed: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Rows that cover every allowed combination of values of any `strength` factors, by a greedy algorithm.

    Args:
        factors: The values of each factor.
        strength: How many factors are covered together.
        allowed: Whether a row, or a part of one, is a combination that exists. A part for which it holds must have a
            whole row for which it holds.

    Returns:
        Rows, the same ones at every call. Each covers as many new combinations as the greedy choice finds.
    """
    missing = {
        combination
        for names in itertools.combinations(factors, strength)
        for values in itertools.product(*(range(len(factors[name])) for name in names))
        if allowed(_values(dict(zip(names, values, strict=True)), factors))
        for combination in [tuple(zip(names, values, strict=True))]
    }
    rows = []
    while missing:
        row = _row(min(missing), factors, missing, allowed)
        missing -= {part for part in itertools.combinations(row.items(), strength) if part in missing}
        rows.append(_values(row, factors))
    return rows


def _row(seed: Any, factors: Mapping[str, Sequence[Any]], missing: set[Any], allowed: Any) -> dict[str, int]:
    """A row around one missing combination; the other factors take the value that covers most."""
    fixed = dict(seed)
    strength = len(seed)
    for name in factors:
        if name in fixed:
            continue
        candidates = [{**fixed, name: index} for index in range(len(factors[name]))]
        candidates = [one for one in candidates if allowed(_values(one, factors))]
        fixed = max(candidates, key=lambda one: _covered(_ordered(one, factors), name, strength, missing))
    return _ordered(fixed, factors)


def _values(row: Mapping[str, int], factors: Mapping[str, Sequence[Any]]) -> Row:
    return {name: factors[name][index] for name, index in row.items()}


def _ordered(row: dict[str, int], factors: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    return {name: row[name] for name in factors if name in row}


def _covered(row: dict[str, int], name: str, strength: int, missing: set[Any]) -> int:
    """How many missing combinations the row covers that contain the factor `name`."""
    parts = itertools.combinations(row.items(), strength)
    return sum(part in missing for part in parts if any(factor == name for factor, _ in part))
