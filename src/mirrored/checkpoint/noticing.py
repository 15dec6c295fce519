"""Lists and dicts of a checkpoint that tell of what comes into them, while a restore still waits for state.

They are views: what is added goes into the list or dict that the checkpoint was given.
"""

from __future__ import annotations

from collections import UserDict, UserList
from collections.abc import Iterable
from typing import Any, SupportsIndex

from mirrored.checkpoint.deferred import state_came


class NoticingList(UserList[Any]):
    """A view of a list."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__()
        self.data = given

    def append(self, item: Any) -> None:
        """Adds an item, which is restored if a restore waits for it."""
        self.data.append(item)
        state_came(item)

    def insert(self, i: int, item: Any) -> None:
        """Adds an item at a place."""
        self.data.insert(i, item)
        state_came(item)

    def extend(self, other: Iterable[Any]) -> None:
        """Adds several."""
        for item in other:
            self.append(item)

    def __iadd__(self, other: Iterable[Any]) -> NoticingList:
        self.extend(other)
        return self

    def __setitem__(self, i: SupportsIndex | slice, item: Any) -> None:
        self.data[i] = item
        state_came(item)


class NoticingDict(UserDict[Any, Any]):
    """A view of a dict."""

    def __init__(self, given: dict[Any, Any]) -> None:
        super().__init__()
        self.data = given

    def __setitem__(self, key: Any, item: Any) -> None:
        self.data[key] = item
        state_came(item)


def noticing(value: Any) -> Any:
    """A view of a list or dict; anything else as it is."""
    if type(value) is list:
        return NoticingList(value)
    return NoticingDict(value) if type(value) is dict else value
