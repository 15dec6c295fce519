"""Reduces the saved read positions of several workers to a single position, if all workers read the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_COUNT: Final = "next_iteration"


class _DifferentError(Exception):
    """Raised if the read positions of workers differ, because the workers do not read the same batches."""


def common_position(positions: Sequence[Any]) -> Any:
    """Returns the common read position of all workers if they read the same batches; otherwise None.

    A worker that alone has read the data, for instance to show examples, has counted more passes than the others. The
    position then has the largest count, with which all workers would begin their next pass (`Source.share_seeds`).

    Args:
        positions: The position of each worker, as dicts, lists and plain values.

    Example:
        >>> common_position([{"count": 4, "next_iteration": 2}, {"count": 4, "next_iteration": 1}])
        {'count': 4, 'next_iteration': 2}
        >>> common_position([{"count": 4}, {"count": 3}]) is None
        True
    """
    try:
        return _common(positions)
    except _DifferentError:
        return None


def _common(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict) and all(isinstance(part, dict) and part.keys() == first.keys() for part in parts):
        return {
            key: max(part[key] for part in parts) if key == _COUNT else _common([part[key] for part in parts])
            for key in first
        }
    if isinstance(first, list) and all(isinstance(part, list) and len(part) == len(first) for part in parts):
        return [_common(one) for one in zip(*parts, strict=True)]
    if any(part != first for part in parts):
        raise _DifferentError
    return first
