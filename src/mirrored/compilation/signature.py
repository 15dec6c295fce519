"""Flattens the arguments of a compiled function and computes their cache key: everything the program depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from mirrored._jax.boxes import Array
from mirrored._jax.host_memory import owned
from mirrored._jax.traces import canonical_dtype
from mirrored.compilation.static_keys import Identity, static_key
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica

_PLAIN = frozenset({bool, int, str, type(None)})


class Ragged(Exception):
    """A per-replica argument has components of different shapes, so no single program serves all replicas."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """A call's flattened arguments.

    Attributes:
        treedef: The structure.
        leaves: The leaves.
        dynamic: The positions of the leaves that are arrays.
        arrays: These leaves as arrays. A per-replica value is one stacked array.
        key: The cache key of the program: the structure, shapes and dtypes, and static values.
    """

    treedef: Any
    leaves: list[Any]
    dynamic: list[int]
    arrays: list[Any]
    key: tuple[Hashable, ...]

    def rebuilt(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unflattens the arguments with these arrays in place of their own."""
        leaves = list(self.leaves)
        for place, array in zip(self.dynamic, arrays, strict=True):
            old = leaves[place]
            if isinstance(old, PerReplica):
                assert old.device_assignment is not None
                leaves[place] = PerReplica.from_stacked(array, old.device_assignment, old.made_by)
            elif isinstance(old, Mirrored):
                leaves[place] = Mirrored(array, old.num_replicas)
            else:
                leaves[place] = array
        return structures.unflatten(self.treedef, leaves)  # type: ignore[no-any-return]

    def of_one_replica(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments that one replica receives, with ``jax.ShapeDtypeStruct`` for arrays."""
        leaves = list(self.leaves)
        for place, array in zip(self.dynamic, self.arrays, strict=True):
            shape = array.shape[1:] if isinstance(leaves[place], PerReplica) else array.shape
            leaves[place] = jax.ShapeDtypeStruct(shape, array.dtype)
        return structures.unflatten(self.treedef, leaves)  # type: ignore[no-any-return]

    def described(self) -> Arguments:
        """Returns the same arguments with descriptions in place of arrays, which frees their memory."""
        arrays = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.arrays]
        leaves = list(self.leaves)
        for place in self.dynamic:
            if not isinstance(leaves[place], DistributedValues):
                leaves[place] = None
        return dataclasses.replace(self, arrays=arrays, leaves=leaves)


def flatten_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], device_assignment: Any) -> Arguments:
    """Flattens a call's arguments.

    Raises:
        Ragged: A per-replica argument has components of different shapes.
    """
    leaves, treedef = structures.flatten((args, kwargs))
    dynamic: list[int] = []
    arrays: list[Any] = []
    key: list[Hashable] = [treedef]
    for place, leaf in enumerate(leaves):
        array = _array_of(leaf, device_assignment)
        if array is None:
            key.append(_static_key(leaf))
            continue
        dynamic.append(place)
        arrays.append(array)
        key.append((type(leaf) is PerReplica, array.shape, *_type_of(array)))
    return Arguments(treedef, leaves, dynamic, arrays, tuple(key))


def quick_key(value: Any, arrays: list[Any]) -> Hashable:
    """Returns a cheap key for tuples, lists and dicts of arrays and constants; None for any other structure.

    It avoids flattening in the calls of a warm training loop. Values with equal quick keys have equal `Arguments.key`.

    Args:
        value: A structure.
        arrays: The list to which its arrays are appended, in the order of `Arguments.arrays`.
    """
    kind = type(value)
    if kind is Array:
        arrays.append(value)
        aval = value.aval
        return (aval.shape, aval.dtype, aval.weak_type)
    if kind is PerReplica:
        if not value.is_stacked or value.device_assignment is None:
            return None
        stacked = value.stacked(value.device_assignment)
        inner = quick_key(stacked, arrays)
        return None if inner is None else (PerReplica, inner)
    if kind in _PLAIN:
        return (kind, value)
    if kind is tuple or kind is list:
        return _quick_keys(kind, value, arrays)
    if kind is dict and all(type(name) is str for name in value):
        names = sorted(value)
        inner = _quick_keys(dict, [value[name] for name in names], arrays)
        return None if inner is None else (tuple(names), inner)
    return None


def _quick_keys(kind: type, values: Sequence[Any], arrays: list[Any]) -> Hashable:
    keys: list[Hashable] = [kind]
    for value in values:
        key = quick_key(value, arrays)
        if key is None:
            return None
        keys.append(key)
    return tuple(keys)


def _array_of(leaf: Any, device_assignment: Any) -> Any:
    """Returns the leaf as an array, or None if it is static."""
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        # A copy: JAX dispatches asynchronously and may read the buffer after the caller has refilled it.
        return owned(np.asarray(leaf, canonical_dtype(leaf.dtype)))
    if isinstance(leaf, PerReplica):
        where = leaf.device_assignment or device_assignment
        if where is None:
            return None
        if not leaf.is_stacked and leaf.component_shape is None:
            raise Ragged
        return leaf.stacked(where)
    if isinstance(leaf, Mirrored) and isinstance(leaf.value, (jax.Array, np.ndarray)):
        return leaf.value
    return None


def _type_of(array: Any) -> tuple[Hashable, ...]:
    if isinstance(array, jax.Array):
        return (array.dtype, getattr(array, "weak_type", False))  # random keys have none
    return (array.dtype, False)


def _static_key(leaf: Any) -> Hashable:
    if leaf is None or isinstance(leaf, (bool, int, str, bytes)):
        return (type(leaf), leaf)
    if isinstance(leaf, DistributedValues):
        return (type(leaf), Identity(leaf))
    return static_key(leaf)


def difference(old: Arguments, new: Arguments) -> str:
    """Returns, in one line, the change of the arguments that made another program necessary."""
    if old.treedef != new.treedef:
        return f"the structure of the arguments changed from {old.treedef} to {new.treedef}"
    paths = jax.tree_util.tree_flatten_with_path(
        structures.unflatten(new.treedef, list(range(len(new.leaves)))), is_leaf=structures.is_leaf
    )[0]
    for (path, _), before, after, leaf in zip(paths, old.key[1:], new.key[1:], new.leaves, strict=True):
        if before != after:
            name = _argument_name(path)
            if isinstance(leaf, (bool, int, float, complex, str)):
                hint = (
                    ""
                    if isinstance(leaf, str)
                    else f"; a Python number is part of the program: pass jnp.asarray({leaf!r})"
                )
                return f"{name} changed from {_described_key(before)} to {_described_key(after)}{hint}"
            return f"{name} changed from {_described_key(before)} to {_described_key(after)}"
    return "the surrounding strategy or JAX configuration changed"


def _argument_name(path: Sequence[Any]) -> str:
    inside = "".join(str(key) for key in path[1:])
    return f"argument {inside}"


def _described_key(key: Any) -> str:
    if isinstance(key, tuple) and len(key) == 4:
        return f"{key[2]}{list(key[1])}{' per replica' if key[0] else ''}"
    return repr(key[1]) if isinstance(key, tuple) and len(key) == 2 else repr(key)
