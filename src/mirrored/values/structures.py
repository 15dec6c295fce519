"""Taking structures apart per replica, and putting replicas' results together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from mirrored.errors import StructureError
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica


def is_leaf(value: Any) -> bool:
    """What is never taken apart: None and distributed values (variables are leaves to JAX by themselves)."""
    return value is None or isinstance(value, DistributedValues)


def flatten(structure: Any, *, also: type | tuple[type, ...] = ()) -> tuple[list[Any], Any]:
    """Leaves and structure; None, per-replica values and variables are leaves, and objects of the types `also`."""
    stops = is_leaf if also == () else lambda value: is_leaf(value) or isinstance(value, also)
    leaves, treedef = jax.tree_util.tree_flatten(structure, is_leaf=stops)
    return leaves, treedef


def unflatten(treedef: Any, leaves: Sequence[Any]) -> Any:
    """Puts leaves back."""
    return jax.tree_util.tree_unflatten(treedef, leaves)


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """Applies `function` to every leaf."""
    leaves, treedef = flatten(structure)
    return unflatten(treedef, [function(leaf) for leaf in leaves])


def select(structure: Any, replica: int) -> Any:
    """What `replica` sees of a cross-replica structure: its components of per-replica values, all else as it is."""

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            return leaf.values[replica]
        if isinstance(leaf, Mirrored):
            return leaf.value
        return leaf

    return map_leaves(pick, structure)


def transpose(results: Sequence[Any], called: str) -> tuple[list[tuple[Any, ...]], Any]:
    """From one structure per replica to one tuple of leaves per place in the structure.

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
                rule="every replica returns the same structure (leaves may differ, also in shape)",
                remedy="return the same keys and lengths on every replica; put None where one has nothing",
            )
    return list(zip(*(leaves for leaves, _ in flat), strict=True)), first


def identical(leaves: Sequence[Any]) -> bool:
    """Whether all replicas gave the very same object."""
    return all(leaf is leaves[0] for leaf in leaves)


def regroup(
    results: Sequence[Any],
    called: str,
    group: Callable[[Sequence[Any]], Any],
    *,
    is_shared: Callable[[Sequence[Any]], bool] = identical,
) -> Any:
    """One structure from one result per replica: structure kept, leaves grouped.

    A leaf that all replicas share (a variable, None, a closed-over array) stays what it is; all others go through
    `group`.
    """
    places, treedef = transpose(results, called)
    return unflatten(treedef, [leaves[0] if is_shared(leaves) else group(leaves) for leaves in places])
