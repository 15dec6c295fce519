"""Flattens, maps and combines pytrees whose leaves may be distributed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from mirrored._jax.trees import Structure, tree_flatten
from mirrored._typing import Leaf, PyTree
from mirrored.errors import StructureError
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica


def is_leaf(value: object) -> bool:
    """Returns whether `value` is one of this module's additional pytree leaves: None or a distributed value.

    Variables are leaves for JAX anyway.
    """
    return value is None or isinstance(value, DistributedValues)


def flatten(structure: PyTree, *, also: type | tuple[type, ...] = ()) -> tuple[list[Any], Structure]:
    """Flattens a pytree into leaves and structure, with None and distributed values as leaves.

    Variables and objects of the types `also` are leaves too.
    """
    stops = is_leaf if also == () else lambda value: is_leaf(value) or isinstance(value, also)
    return tree_flatten(structure, is_leaf=stops)


def label_of(treedef: Structure, place: int) -> str:
    """Returns the name of one leaf of a result for error messages, such as ``result[0]['w']``."""
    numbered = treedef.unflatten(range(treedef.num_leaves))
    paths = jax.tree_util.tree_flatten_with_path(numbered, is_leaf=is_leaf)[0]
    return f"result{jax.tree_util.keystr(paths[place][0])}"


def map_leaves(function: Callable[[Any], Any], structure: PyTree) -> Any:
    """Applies `function` to every leaf of a pytree, with None and distributed values as leaves."""
    leaves, treedef = flatten(structure)
    return treedef.unflatten([function(leaf) for leaf in leaves])


def select(structure: PyTree, replica: int, component_of: Callable[[PerReplica, int], Any]) -> Any:
    """Replaces each `PerReplica` and each `Mirrored` in a pytree by one replica's value.

    Args:
        structure: The pytree.
        replica: The index of the replica.
        component_of: Returns a replica's component of a per-replica value.
    """

    def pick(leaf: Leaf) -> Any:
        if isinstance(leaf, PerReplica):
            return component_of(leaf, replica)
        if isinstance(leaf, Mirrored):
            return leaf.value
        return leaf

    return map_leaves(pick, structure)


def transpose(results: Sequence[Any], called: str) -> tuple[list[tuple[Any, ...]], Any]:
    """Converts the replicas' pytrees to one list, whose entry i is the tuple of all replicas' values of leaf i.

    The structure is returned as well.

    Raises:
        StructureError: Two replicas returned different structures.
    """
    flat = [flatten(result) for result in results]
    first = flat[0][1]
    for replica, (_, treedef) in enumerate(flat):
        if treedef != first:
            raise StructureError(
                called,
                found=f"replica 0 returned {first} and replica {replica} returned {treedef}",
                rule="every replica must return the same structure (leaves can differ, even in shape)",
                remedy="return the same keys and lengths on every replica, with None for a missing value",
            )
    return list(zip(*(leaves for leaves, _ in flat), strict=True)), first


def identical(leaves: Sequence[Any]) -> bool:
    """Returns whether the replicas' leaves are all the same Python object."""
    return all(leaf is leaves[0] for leaf in leaves)


def regroup(
    results: Sequence[Any],
    called: str,
    group: Callable[[Sequence[Any]], Any],
    *,
    are_shared: Callable[[Sequence[Sequence[Any]]], Iterable[bool]] = lambda columns: map(identical, columns),
) -> Any:
    """Combines the replicas' pytrees into one pytree: applies `group` to the replicas' leaves at each position.

    A leaf that all replicas share (a variable, None, a closed-over array) is returned unchanged; `are_shared` decides,
    given each leaf's column: that leaf of every replica. `group` combines all others.
    """
    columns, treedef = transpose(results, called)
    shared = zip(columns, are_shared(columns), strict=True)
    return treedef.unflatten([column[0] if is_shared else group(column) for column, is_shared in shared])
