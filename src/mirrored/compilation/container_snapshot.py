"""Snapshots of plain Python containers, which detect whether elements were removed and can restore them."""

from __future__ import annotations

import collections
import operator
import queue
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

_ORDERED: Final = (list, collections.deque)
_KEYED: Final = (dict, collections.OrderedDict, collections.defaultdict, set)
_QUEUES: Final = (queue.Queue, queue.LifoQueue, queue.PriorityQueue)
_NUMBERS: Final = (bool, int, float, complex, str, bytes, type(None))
_LONGEST_SHIFT: Final = 4


class ContainerSnapshot:
    """A snapshot of a container's elements.

    Args:
        container: A container that `is_container` accepts.

    Example:
        >>> rows = collections.deque([1, 2, 3])
        >>> before = ContainerSnapshot(rows)
        >>> rows.append(4)
        >>> before.are_taken()
        False
        >>> rows.popleft()
        1
        >>> before.are_taken()
        True
    """

    def __init__(self, container: Any) -> None:
        self._container = container.queue if type(container) in _QUEUES else container
        keyed = isinstance(self._container, dict)
        self._before: list[Any] = list(self._container.items() if keyed else self._container)

    def are_taken(self) -> bool:
        """Returns whether elements have been removed or moved since the snapshot.

        Appending, inserting and replacing items do not count: traced functions legitimately record traces and results
        that way.
        """
        if type(self._container) in _KEYED:
            names = [one[0] for one in self._before] if isinstance(self._container, dict) else self._before
            return any(name not in self._container for name in names)
        after = list(self._container)
        if _is_subsequence(self._before, after):
            return False
        if len(after) != len(self._before):
            return len(after) < len(self._before)
        is_permuted = Counter(map(id, after)) == Counter(map(id, self._before))
        return is_permuted or self._are_shifted(after)

    def _are_shifted(self, after: Sequence[Any]) -> bool:
        """Returns whether elements were removed at the front and the same number appended.

        Two cases are excluded: a full bounded deque drops elements by itself, and a list of numbers may only look
        shifted, because equal numbers can be the same object.
        """
        if isinstance(self._container, collections.deque):
            return self._container.maxlen is None and _is_shifted(self._before, after)
        return any(type(one) not in _NUMBERS for one in after) and _is_shifted(self._before, after)

    def put_back(self) -> None:
        """Restores the removed elements, if there are any."""
        if not self.are_taken():
            return
        if isinstance(self._container, dict):
            after = dict(self._container)
            self._container.clear()
            self._container.update(self._before)
            self._container.update(after)
        elif isinstance(self._container, set):
            self._container.update(self._before)
        else:
            self._container.clear()
            self._container.extend(self._before)


def is_container(value: Any) -> bool:
    """Returns whether `value` is a plain list, dict, set, deque or queue, from which a function may remove elements."""
    return type(value) in (*_ORDERED, *_KEYED, *_QUEUES)


def _is_subsequence(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    remaining = iter(whole)
    return all(any(one is other for other in remaining) for one in part)


def _is_shifted(before: Sequence[Any], after: Sequence[Any]) -> bool:
    longest = min(_LONGEST_SHIFT, len(before) - 1)
    return any(all(map(operator.is_, before[shift:], after)) for shift in range(1, longest + 1))
