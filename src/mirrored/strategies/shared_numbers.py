"""Decides together with the other workers which Python numbers all replicas of an eager run share.

Python has one object for all equal small integers, and one for True: a number that a replica computes can be the same
object as an argument of the run, on some workers only. So workers exchange these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrored.collectives.host_allgather import host_allgather


def is_number(value: object) -> bool:
    """Returns whether a value is a number whose identity says nothing about its origin."""
    return isinstance(value, (bool, int, float, complex, np.bool_))


def shared_by_workers(columns: Sequence[Sequence[Any]], shared: Sequence[bool]) -> list[bool]:
    """Returns which leaves the replicas share: one object on this worker and, if a number, equal on all workers.

    This is a collective operation: all workers must call the function.

    Args:
        columns: The components of each leaf on this worker.
        shared: Whether the replicas of this worker share them.
    """
    own = [
        f"{type(column[0]).__name__} {column[0]!r}" if is_shared and is_number(column[0]) else None
        for column, is_shared in zip(columns, shared, strict=True)
    ]
    everyone = host_allgather(
        "Strategy.run", "compare the numbers that replicas return or merge (in an eager run)", own
    )
    return [
        is_shared and all(theirs[place : place + 1] == [own[place]] for theirs in everyone if own[place] is not None)
        for place, is_shared in enumerate(shared)
    ]
