"""Finds the state of a checkpoint that differs between workers, of which the checkpoint has only one worker's values.

Variables that a strategy over several processes has made are equal on all workers, or have a component per replica.
Plain numbers, arrays, and variables made outside of such a strategy's scope belong to their worker. Workers exchange a
digest of these per part of the checkpoint, and only if digests differ one of each value.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.source_lines import user_stacklevel
from mirrored.checkpoint.json_state import decode, to_json
from mirrored.checkpoint.leaves import ArrayLeaf, Leaf, VariableLeaf
from mirrored.checkpoint.saved import Saved
from mirrored.errors import WorkerStateWarning

Exchange = Callable[[Any], list[Any]]  # gives each worker the values of all

_SHOWN: Final = 3
_MOST: Final = 500  # values whose digests are exchanged, such as those of a long list
_LONGEST: Final = 40  # letters of a value


@dataclasses.dataclass(frozen=True)
class WorkerState:
    """The state in a checkpoint by name, and the names of the values that can differ between workers.

    Attributes:
        leaves: All state that is saved. Workers compare its names, too.
        local: The names of the values that belong to this worker.
    """

    leaves: Mapping[str, Saved]
    local: frozenset[str]

    @classmethod
    def of(cls, leaves: Mapping[str, Saved], adapters: Mapping[str, Leaf]) -> WorkerState:
        """Returns the state of a checkpoint that has been read.

        Args:
            leaves: The state that was read.
            adapters: The adapters that have read it.
        """
        return cls(leaves, frozenset(name for name, leaf in adapters.items() if _is_local(leaf, leaves[name])))

    def digests(self, told: set[str]) -> dict[str, str]:
        """Returns a digest of the names and local values in each part of the checkpoint.

        Args:
            told: The items and parts that are left out, because a warning has named them.
        """
        hashers: dict[str, Any] = {}
        for name, saved in self.leaves.items():
            if not _is_told(name, told):
                part = name.partition("/")[0]
                hasher = hashers.setdefault(part, hashlib.blake2b(digest_size=16))
                hasher.update(f"{name}\0".encode())
                if name in self.local:
                    _add(hasher, saved)
        return {part: hasher.hexdigest() for part, hasher in hashers.items()}

    def values(self, parts: Sequence[str], told: set[str]) -> list[list[str]]:
        """Returns the names, digests and texts of the values in some parts, at most `_MOST` ones."""
        found = [name for name in self.leaves if name.partition("/")[0] in parts and not _is_told(name, told)]
        return [[name, self._digest(name, self.leaves[name]), self._text(name)] for name in found[: _MOST + 1]]

    def _digest(self, name: str, saved: Saved) -> str:
        if name not in self.local:
            return ""
        hasher = hashlib.blake2b(digest_size=16)
        _add(hasher, saved)
        return hasher.hexdigest()

    def _text(self, name: str) -> str:
        return _text(self.leaves[name]) if name in self.local else str(self.leaves[name])


def _item_of(name: str) -> str:
    """Returns the name of the item that a warning names once: for an entry of a list, which can grow, the list."""
    before, _, last = name.rpartition("/")
    return before if before and last.isdigit() else name


def _is_told(name: str, told: set[str]) -> bool:
    return bool(told) and (_item_of(name) in told or name.partition("/")[0] in told)


def _is_local(leaf: Leaf, saved: Saved) -> bool:
    if saved.kind in ("number", "position"):
        return saved.kind == "number"  # positions are saved per worker
    if isinstance(leaf, VariableLeaf):
        device_assignment = leaf.variable.device_assignment
        return device_assignment is None or not device_assignment.spans_processes
    array = leaf.place.get() if isinstance(leaf, ArrayLeaf) else None
    return not isinstance(array, jax.Array) or array.is_fully_addressable


def _add(hasher: hashlib.blake2b, saved: Saved) -> None:
    if not saved.is_array:
        hasher.update(f"{saved.dtype} {to_json(saved.value)}\n".encode())
        return
    data = np.ascontiguousarray(_with_one_nan(saved.value)).reshape(-1).view(np.uint8)
    # A checksum, five times as fast as the digest: the training waits for it.
    hasher.update(f"{saved.kind} {saved.shape} {saved.dtype} {zlib.crc32(data)}\n".encode())


def _with_one_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array in which all NaN have the same bits: processors differ in the sign of the NaN that they make."""
    if not jnp.issubdtype(array.dtype, np.inexact):
        return array
    with np.errstate(all="ignore"):
        if not np.isnan(np.sum(array)):  # far faster than a test of each value; inf - inf is NaN, too
            return array
    unknown = np.isnan(array)
    return np.where(unknown, np.asarray(np.nan, array.dtype), array) if unknown.any() else array


def _text(saved: Saved) -> str:
    if saved.is_array:
        return np.array2string(np.asarray(saved.one()), threshold=4, edgeitems=2).replace("\n", "")[:_LONGEST]
    return repr(decode(saved.value))[:_LONGEST]


def warn_of_differences(
    called: str, state: WorkerState, everyone: Sequence[Mapping[str, str]], told: set[str], exchange: Exchange
) -> None:
    """Warns about values that differ between workers, or that some workers do not have; once about each item.

    All workers warn, so that a filter that turns the warning into an error ends the save on each of them.

    Args:
        called: The method that saves.
        state: The state of this worker.
        everyone: The `digests` of all workers.
        told: The items that were named before; this function adds to it.
        exchange: Exchanges the values, if digests differ.
    """
    parts = dict.fromkeys(part for digests in everyone for part in digests)
    unequal = [part for part in parts if any(digests.get(part) != everyone[0].get(part) for digests in everyone)]
    if not unequal:
        return
    found = exchange(state.values(unequal, told))
    is_whole = all(len(values) <= _MOST for values in found)
    tables = [{name: (digest, text) for name, digest, text in values[:_MOST]} for values in found]
    different: list[str] = []
    for name in dict.fromkeys(name for table in tables for name in table):
        others = [number for number in range(len(tables)) if _differs(name, tables[0], tables[number], is_whole)]
        if others:
            different.append(f"{name} is {_at(0, tables, name)} and {_at(others[0], tables, name)}")
            told.add(_item_of(name))
    if not different:  # the values that differ are beyond those that were exchanged
        counts = collections.Counter(name.partition("/")[0] for name in state.leaves)
        different = [f"{part} has {counts[part]} values, of which later ones differ" for part in unequal]
        told.update(unequal)
    _warn(called, different)


def _differs(name: str, of_first: Mapping[str, Any], of_other: Mapping[str, Any], is_whole: bool) -> bool:
    """Returns whether a value differs; of lists that are not `is_whole`, the end can be missing."""
    if name not in of_first or name not in of_other:
        return is_whole and (name in of_first) != (name in of_other)
    return bool(of_first[name][0] != of_other[name][0])


def _at(worker: int, tables: Sequence[Mapping[str, tuple[str, str]]], name: str) -> str:
    table = tables[worker]
    return f"{table[name][1] if name in table else 'absent'} on worker {worker}"


def _warn(called: str, different: Sequence[str]) -> None:
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    warnings.warn(
        f"{called}: state differs between workers: {'; '.join(different[:_SHOWN])}{more}\n"
        "  rule:   a checkpoint has one value of each number, array and variable, that of the worker which writes it "
        "(worker 0), and a restore gives it to all workers; only iterators and random generators have a state per "
        "worker\n"
        "  remedy: save a value that is equal on all workers, such as a sum over the workers; or keep it in a variable "
        "with synchronization=ON_READ, aggregation=NONE, made in strategy.scope(), which has a value per replica; or "
        "in an object with get_state and set_state, whose state is saved per worker; or leave it out of the checkpoint",
        WorkerStateWarning,
        stacklevel=user_stacklevel(),
    )
