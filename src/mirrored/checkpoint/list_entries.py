"""Determines which items of a list are entries of a log, such as a history of losses: numbers, and records of them.

An entry has the values that the program gives it. A layer, in contrast, or a variable, may be created in order to be
restored.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

import jax
import numpy as np

from mirrored._jax.arrays import is_key
from mirrored._jax.traces import Tracer
from mirrored._typing import Array, HostArray
from mirrored.checkpoint.saved import Saved
from mirrored.checkpoint.saved_numbers import is_number
from mirrored.variables import Variable

_DEPTH: Final = 8  # containers within containers that are searched; what is deeper is no entry


def is_entry(value: object) -> bool:
    """Returns whether `value` is a number, a scalar array, or a dict, list, tuple or dataclass with numbers.

    A dict of arrays alone is no entry, because it may be parameters. Beside numbers, it may have texts and arrays.
    """
    inside = list(_values(value, _DEPTH))
    others = [one for one in inside if not is_number(one)]
    arrays = [one for one in others if _is_array(one)]
    if not all(one is None or isinstance(one, (str, bytes)) or _is_array(one) for one in others):
        return False
    return len(others) < len(inside) or (bool(arrays) and all(np.shape(one) == () for one in arrays))


class RestartedLists:
    """Finds saved values that belong to a list, such as a loss history, that the program has begun anew.

    A list was begun anew if it has items in the program, and the checkpoint has further items of it.

    Args:
        lists: The lists and deques of the program, by name.
    """

    def __init__(self, lists: Mapping[str, list[Any] | deque[Any]]) -> None:
        self._of_entries = {name: all(map(is_entry, given)) for name, given in lists.items() if given}

    def list_of(self, name: str, saved: Saved) -> str | None:
        """Returns the name of the list, begun anew by the program, to which a saved value belongs; None for others.

        A checkpoint with the entries of the program and the saved value would mix two lists.

        Args:
            name: The name of a saved value that the program does not have, such as ``history/1/loss``.
            saved: The saved value.
        """
        if saved.kind not in ("number", "array"):
            return None
        direct = name.rpartition("/")[0]
        above = itertools.accumulate(name.split("/")[:-1], "{}/{}".format)
        found = [one for one in above if self._of_entries.get(one)]
        if not found and saved.kind == "number" and direct in self._of_entries:
            return direct
        return found[0] if found else None


def _values(value: Any, depth: int) -> Iterator[object]:  # Any: a container of any kind
    """Yields the values in nested dicts, lists, tuples and plain dataclasses, down to a number of levels."""
    kind = type(value)
    if depth == 0:
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _values(one, depth - 1)
    elif isinstance(value, (list, tuple, deque)):
        for one in value:
            yield from _values(one, depth - 1)
    elif dataclasses.is_dataclass(kind) and all(map(dataclasses.is_dataclass, kind.__mro__[:-1])):  # no module
        for field in dataclasses.fields(kind):
            yield from _values(getattr(value, field.name, None), depth - 1)
    else:
        yield value


def _is_array(value: object) -> TypeGuard[Array | HostArray]:
    if isinstance(value, (Variable, Tracer)):
        return False
    return isinstance(value, np.ndarray) or (isinstance(value, jax.Array) and not is_key(value))
