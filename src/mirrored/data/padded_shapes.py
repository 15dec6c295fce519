"""The padded shapes of `padded_batch` and `bucket_by_sequence_length`: one for each leaf of an element."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np

from mirrored._jax.trees import Structure
from mirrored._typing import PyTree
from mirrored.errors import StructureError
from mirrored.values.tensor_shape import TensorShape


def padded_shapes_of(shapes: PyTree, treedef: Structure, called: str) -> list[Any]:
    """Returns the padded shape of each leaf of an element; None in a shape stands for the dim's largest size.

    Raises:
        StructureError: `shapes` has another structure than the element.
    """
    if _is_none_for_each(shapes, treedef.treedef):
        return [None] * treedef.num_leaves
    found = per_leaf(shapes, treedef, called, "padded_shapes", is_shape)
    return [checked_shape(shape, called) for shape in found]


def checked_shape(shape: Any, called: str) -> tuple[int | None, ...] | None:
    """Converts a padded shape to a tuple of integers and None, or raises a StructureError."""
    if shape is None:
        return None
    try:
        return tuple(None if size is None else operator.index(size) for size in shape)
    except (TypeError, ValueError):  # no sizes, not a sequence, or a TensorShape of unknown rank
        raise StructureError(
            called,
            found=f"padded_shapes contains {shape!r}",
            rule="a padded shape must be a list or tuple of integers and None, or None",
            remedy="pass None for a dim that varies, and None as the shape of a leaf all of whose dims vary",
        ) from None


def is_shape(part: object) -> bool:
    """Returns whether a part of a pytree is one padded shape: None, or a list or tuple of integers and None."""
    if part is None or _has_no_rank(part):  # the latter has no items, and is refused as a shape
        return True
    return isinstance(part, list | tuple) and all(size is None or _is_size(size) for size in part)


def _has_no_rank(part: object) -> bool:
    """Returns whether a part of a pytree is a `TensorShape` of unknown rank, which is a tuple without items."""
    return isinstance(part, TensorShape) and part.rank is None


def _is_size(size: object) -> bool:
    return isinstance(size, SupportsIndex) and np.ndim(size) == 0  # type: ignore[call-overload]


def _is_none_for_each(shapes: PyTree, treedef: Any) -> bool:
    """Returns whether the padded shapes of a tuple element are all None.

    `shapes` is then a tuple such as ``(None, None)``, with one None per item of the element.
    """
    node = treedef.node_data()
    is_tuple = isinstance(shapes, tuple) and node is not None and issubclass(node[0], tuple)
    return is_tuple and len(shapes) == len(treedef.children()) and all(shape is None for shape in shapes)


def check_rank(shape: Sequence[int | None], rank: int, called: str) -> None:
    """Raises an error if a padded shape does not have as many dims as its leaf.

    Raises:
        StructureError: The numbers of dims differ.
    """
    if len(shape) != rank:
        raise StructureError(
            called,
            found=f"padded_shapes has the shape {list(shape)} for a leaf with {rank} dims",
            rule="a padded shape must have the same number of dims as its leaf",
            remedy="pass None for a dim that varies; for elements of several leaves, a shape for each of them in the "
            "structure of the element",
        )


def per_leaf(tree: PyTree, treedef: Structure, called: str, name: str, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """Returns a list with one value per leaf of an element, given a single value or a pytree prefix of values.

    Raises:
        StructureError: `tree` is no such value or prefix.
    """
    leaves, own = jax.tree.flatten(tree, is_leaf=is_leaf)
    if own == treedef.treedef or len(leaves) == treedef.num_leaves == 1:
        return leaves
    if jax.tree_util.treedef_is_leaf(own):
        return leaves * treedef.num_leaves
    found: list[Any] = [None] * treedef.num_leaves

    def put(value: object, part: PyTree) -> None:
        for place in jax.tree.leaves(part):
            found[place] = value

    try:
        jax.tree.map(put, _plain(tree, is_leaf), _plain(treedef.unflatten(range(treedef.num_leaves))), is_leaf=is_leaf)
    except (ValueError, TypeError, KeyError):
        raise StructureError(
            called,
            found=f"{name}={tree!r}, and the elements are {treedef}",
            rule=f"{name} must have the structure of an element, or be one value for all leaves",
            remedy="pass the same keys and tuple lengths as the elements have; None stands for the default",
        ) from None
    return found


def _plain(tree: PyTree, is_leaf: Callable[[Any], bool] = lambda part: False) -> Any:
    """Converts mappings of a pytree to dicts, and its lists and named tuples to plain tuples."""
    if is_leaf(tree):
        return tree
    if isinstance(tree, Mapping):
        return {key: _plain(part, is_leaf) for key, part in tree.items()}
    return tuple(_plain(part, is_leaf) for part in tree) if isinstance(tree, list | tuple) else tree
