"""Views of a checkpoint's lists and dicts that report new items, while a restore waits for state.

A new item is added to the underlying list or dict, which was passed to the checkpoint.
"""

from __future__ import annotations

from collections import UserDict, UserList
from collections.abc import Iterable
from typing import Any, SupportsIndex

from mirrored.checkpoint.deferred import state_came


class NoticingList(UserList[Any]):
    """A view of a list that reports new items."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__()
        self.data = given

    def append(self, item: Any) -> None:
        """Appends an item, and restores it if a restore waits for it."""
        self.data.append(item)
        state_came(item)

    def insert(self, i: int, item: Any) -> None:
        """Inserts an item, and restores it if a restore waits for it."""
        self.data.insert(i, item)
        state_came(item)

    def extend(self, other: Iterable[Any]) -> None:
        """Appends several items, and restores those that a restore waits for."""
        for item in other:
            self.append(item)

    def __iadd__(self, other: Iterable[Any]) -> NoticingList:
        self.extend(other)
        return self

    def __setitem__(self, i: SupportsIndex | slice, item: Any) -> None:
        self.data[i] = item
        state_came(item)


class NoticingDict(UserDict[Any, Any]):
    """A view of a dict that reports new items."""

    def __init__(self, given: dict[Any, Any]) -> None:
        super().__init__()
        self.data = given

    def __setitem__(self, key: Any, item: Any) -> None:
        self.data[key] = item
        state_came(item)


def noticing(value: Any) -> Any:
    """Returns a view of a list or dict; returns any other value unchanged."""
    if type(value) is list:
        return NoticingList(value)
    return NoticingDict(value) if type(value) is dict else value
