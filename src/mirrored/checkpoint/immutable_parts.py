"""Warns if a checkpoint and the program may hold different versions of an immutable object, such as a tuple or array.

A step returns new arrays, such as a new `TrainState`. A restore makes a new object in place of one that cannot change:
a tuple, a frozen dataclass, an array or a PRNG key. Afterwards the object that the program holds and the part of the
checkpoint are different objects with different values.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import jax
import numpy as np

from mirrored.checkpoint.graph import Graph, walk
from mirrored.checkpoint.leaves import ArrayLeaf, VariableLeaf
from mirrored.checkpoint.matching import COUNTER
from mirrored.checkpoint.number_leaf import NumberLeaf
from mirrored.checkpoint.objects import KerasLeaf, Part
from mirrored.checkpoint.places import Root, is_frozen

_log = logging.getLogger("mirrored.checkpoint")
_TIMES: Final = 3


def log_replaced(called: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Logs which immutable objects a restore has replaced, because the program may still use the old objects."""
    for name, part in before.items():
        if after[name] is not part and (_is_immutable(part) or _is_fixed_array(part) or _is_fixed_mapping(part)):
            _log.warning(
                "%s: the %s that was passed as %r cannot be changed and keeps its values; checkpoint.%s is a new one "
                "with the restored values. Continue with that: %s = checkpoint.%s",
                *(called, _kind_of(part), name, name, name, name),
            )


def log_unassigned(called: str, parts: Mapping[str, Any], saved: set[str]) -> None:
    """Warns if the program saves the same immutable objects again, such as tuples of arrays.

    Their arrays cannot have changed, so the program may have forgotten to assign the new ones of a step.

    Args:
        called: The method that saves.
        parts: The parts of the checkpoint, by name.
        saved: The names of the objects that were saved and not assigned since.
    """
    for name in sorted(saved):
        part = parts[name]
        if not _is_immutable(part):
            continue
        leaves = walk([Part(name, part, Root({name: part}, name))]).leaves.values()
        kinds = {type(leaf) for leaf in leaves}
        if ArrayLeaf in kinds and kinds <= {ArrayLeaf, NumberLeaf}:
            _log.warning(
                "%s: checkpoint.%s is the %s that was saved before, whose arrays cannot change. If a step has returned "
                "a new one, assign it before you call %s: checkpoint.%s = %s",
                *(called, name, type(part).__name__, called, name, name),
            )


class ArraysSaved:
    """Counts how many times in a row a checkpoint saves the same arrays.

    It counts only in a program without variables, where each step makes new arrays. They are also the same ones in a
    save after the last step.
    """

    def __init__(self) -> None:
        self._latest: list[weakref.ref[Any]] = []
        self._times = 0
        self._is_over = False

    def log_same(self, called: str, parts: Mapping[str, Any], look: Callable[[], Graph]) -> None:
        """Warns once if the same arrays are saved for the third time in a row.

        Args:
            called: The method that saves.
            parts: The parts of the checkpoint, by name. `log_unassigned` warns of tuples and frozen dataclasses.
            look: Returns the state of the checkpoint.
        """
        if self._is_over:
            return
        arrays: dict[str, Any] = {}
        for name, leaf in look().leaves.items():
            if isinstance(leaf, ArrayLeaf):
                arrays[name] = leaf.place.get()
            elif isinstance(leaf, (VariableLeaf, KerasLeaf)) and name != COUNTER:
                self._is_over = True
        if self._is_over or not all(isinstance(array, jax.Array) for array in arrays.values()):
            self._is_over = True  # variables and NumPy arrays change in place
            return
        before = [reference() for reference in self._latest]
        is_same = len(before) == len(arrays) and all(map(operator.is_, before, arrays.values()))
        self._times = self._times + 1 if is_same else 1
        self._latest = [weakref.ref(array) for array in arrays.values()]
        names = sorted({name.partition("/")[0] for name in arrays})
        names = [name for name in names if name in parts and not _is_immutable(parts[name])]
        if names and self._times == _TIMES:
            self._is_over = True
            _log.warning(
                "%s has saved the same arrays %d times: those of %s. If a step has returned new ones, assign them "
                "before you call %s: checkpoint.%s = %s",
                *(called, _TIMES, ", ".join(f"checkpoint.{name}" for name in names), called, names[0], names[0]),
            )


def _kind_of(part: object) -> str:
    return "jax.Array" if isinstance(part, jax.Array) else type(part).__name__


def _is_immutable(part: object) -> bool:
    return isinstance(part, tuple) or is_frozen(part)


def _is_fixed_array(part: object) -> bool:
    return isinstance(part, jax.Array) or (isinstance(part, np.ndarray) and not part.flags.writeable)


def _is_fixed_mapping(part: object) -> bool:
    return isinstance(part, Mapping) and not isinstance(part, MutableMapping)
