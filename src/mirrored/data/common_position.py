"""Combines the read positions of workers that read the same batches; refuses one of another number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrored.errors import ArgumentError

_COUNT: Final = "next_iteration"
_AHEAD: Final = frozenset({"made", "left_out", "indices"})


class _DifferentError(Exception):
    """Raised if the read positions of workers differ, because the workers do not read the same batches."""


def common_position(positions: Sequence[Any]) -> Any:
    """Returns the common read position of all workers if they read the same batches; otherwise None.

    A worker that alone has read the data, for instance to show examples, has counted more passes than the others. The
    position then has the largest count, with which all workers would begin their next pass (`Source.share_seeds`).
    The threads of `prefetch` may have made other inner datasets that follow the position, or have drawn from a random
    generator first; it has what those of worker 0 have.

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
    if isinstance(first, dict) and all(isinstance(part, dict) and _alike(part, first) for part in parts):
        return {
            key: value if key in _AHEAD else _common_of(key, [part[key] for part in parts])
            for key, value in first.items()
        }
    if isinstance(first, list) and all(isinstance(part, list) and len(part) == len(first) for part in parts):
        return [_common(one) for one in zip(*parts, strict=True)]
    if any(part != first for part in parts):
        raise _DifferentError
    return first


def _alike(part: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return part.keys() - _AHEAD == other.keys() - _AHEAD


def _common_of(key: str, parts: Sequence[Any]) -> Any:
    return max(parts) if key == _COUNT else _common(parts)


def check_workers(state: dict[str, Any], workers: int, read: bool) -> None:
    """Raises an error if the number of workers that read separate data has changed since a position was saved.

    The positions of all workers can be equal, so that a checkpoint contains only one, which does not show their number.

    Args:
        state: The position; those of earlier versions have no number of workers.
        workers: The number of workers that each read their own data; 1 if all read the same.
        read: Whether any example was read before the position.

    Raises:
        ArgumentError: The number of workers differs.
    """
    saved = state.get("workers", workers)
    if saved != workers and read:
        raise ArgumentError(
            "DistributedIterator.set_state",
            found=f"the position was saved by {_readers(saved)}, and is restored by {_readers(workers)}",
            rule="if each worker reads its own data, positions can be restored only with the same number of workers",
            remedy=f"resume with {_readers(saved)}, omit the iterator from the checkpoint, or distribute global "
            "batches (AutoShardPolicy.DATA), whose position fits any number of workers",
        )


def _readers(workers: int) -> str:
    return f"{workers} workers that read their own data" if workers > 1 else "a worker that reads all of the data"
