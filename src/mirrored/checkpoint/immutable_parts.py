"""Warns about parts of a checkpoint that cannot change in place: tuples and frozen dataclasses of arrays.

A step returns a new `TrainState` of arrays, and a restore makes one. Afterwards the object that the program holds and
the part of the checkpoint are different objects with different values.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mirrored.checkpoint.graph import walk
from mirrored.checkpoint.leaves import ArrayLeaf, NumberLeaf
from mirrored.checkpoint.objects import Part
from mirrored.checkpoint.places import Root, is_frozen

_log = logging.getLogger("mirrored.checkpoint")


def log_replaced(called: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Logs which immutable objects a restore has replaced, because the program may still use the old objects."""
    for name, part in before.items():
        if after[name] is not part and _is_immutable(part):
            _log.warning(
                "%s: the %s that was passed as %r cannot be changed and keeps its values; checkpoint.%s is a new one "
                "with the restored values. Continue with that: %s = checkpoint.%s",
                *(called, type(part).__name__, name, name, name, name),
            )


def log_unassigned(called: str, parts: Mapping[str, Any], saved: set[str]) -> None:
    """Warns of immutable objects in a checkpoint that no new object has replaced since the previous save.

    Args:
        called: The method that saves.
        parts: The parts of the checkpoint, by name.
        saved: The names of the parts that were saved and not assigned since.
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


def _is_immutable(part: object) -> bool:
    return isinstance(part, tuple) or is_frozen(part)
