"""Flattens, maps and combines pytrees whose leaves may be distributed values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from mirrored._typing import Leaf, PyTree
from mirrored.errors import StructureError
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica


def is_leaf(value: object) -> bool:
    """Returns whether `value` is None or a distributed value, which are pytree leaves in addition to JAX's leaves.

    Variables are leaves for JAX anyway.
    """
    return value is None or isinstance(value, DistributedValues)


def flatten(structure: PyTree, *, also: type | tuple[type, ...] = ()) -> tuple[list[Any], Any]:
    """Flattens a pytree into leaves and structure, with None and distributed values as leaves.

    Variables and objects of the types `also` are leaves too.
    """
    stops = is_leaf if also == () else lambda value: is_leaf(value) or isinstance(value, also)
    leaves, treedef = jax.tree_util.tree_flatten(structure, is_leaf=stops)
    return leaves, treedef


def unflatten(treedef: jax.tree_util.PyTreeDef, leaves: Sequence[Any]) -> Any:
    """Rebuilds a pytree from its leaves and its structure."""
    return jax.tree_util.tree_unflatten(treedef, leaves)


def in_order_of(like: PyTree, structure: PyTree) -> Any:
    """Returns a structure whose dicts have their keys in the order of those of `like`, which has the same structure.

    JAX's unflattening sorts the keys of a dict, so that ``zip(gradients.values(), variables.values())`` would pair
    gradients with other variables.
    """
    if type(like) is dict and isinstance(structure, dict):
        return {key: in_order_of(like[key], structure[key]) for key in like}
    if type(like) is type(structure) and (type(like) in (list, tuple) or hasattr(like, "_fields")):
        parts = [in_order_of(*pair) for pair in zip(like, structure, strict=True)]
        return type(like)(parts) if type(like) in (list, tuple) else type(like)(*parts)
    return structure


def map_leaves(function: Callable[[Any], Any], structure: PyTree) -> Any:
    """Applies `function` to every leaf of a pytree, with None and distributed values as leaves."""
    leaves, treedef = flatten(structure)
    return unflatten(treedef, [function(leaf) for leaf in leaves])


def select(structure: PyTree, replica: int, component_of: Callable[[PerReplica, int], Any]) -> Any:
    """Replaces each per-replica value in a pytree by one replica's component.

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
    """Converts per-replica pytrees to a list of tuples: for each leaf position, the leaves of all replicas.

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
    is_shared: Callable[[Sequence[Any]], bool] = identical,
) -> Any:
    """Combines the replicas' pytrees into one pytree by applying `group` to their leaves at each position.

    A leaf that all replicas share (a variable, None, a closed-over array) is returned unchanged. `group` combines all
    others.
    """
    places, treedef = transpose(results, called)
    return unflatten(treedef, [leaves[0] if is_shared(leaves) else group(leaves) for leaves in places])
