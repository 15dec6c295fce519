"""Infers from the operations of a dataset whether its elements are batches or single examples."""

from __future__ import annotations

from typing import Any, Final

import jax

from mirrored.data.options import UNKNOWN_CARDINALITY
from mirrored.data.pipeline import (
    caching,
    csv,
    files,
    indexed_sources,
    shuffling,
    stateful,
    streams,
    transformations,
    zipping,
)
from mirrored.data.pipeline.nodes import Node
from mirrored.data.specs import ArraySpec, NoElementError

_BATCHING: Final = (csv.CsvBatches, streams.Rebatched, transformations.Batched)
_SINGLE: Final = (
    csv.CsvRows,
    files.FileSource,
    indexed_sources.ArraySource,
    indexed_sources.RangeSource,
    streams.Unbatched,
)
_LIKE_PARENTS: Final = (
    caching.Cached,
    shuffling.Shuffled,
    stateful.Promised,
    stateful.TakenWhile,
    caching.Kept,
    streams.Filtered,
    transformations.Concatenated,
    transformations.Prefetched,
    transformations.Repeated,
    transformations.Sliced,
    zipping.Zipped,
)


def is_batched(node: Node) -> bool | None:
    """Returns whether a dataset's elements are batches; None if the dataset's operations do not determine that.

    A generator, a tensor (`from_tensors`) and a function of scalars (file names, for example) can return either. So can
    a function of a batch and its number (`enumerate`).

    Args:
        node: The last step of the pipeline.

    Example:
        >>> from mirrored.data import Dataset
        >>> rows = Dataset.from_tensor_slices([[1.0, 2.0], [3.0, 4.0]])
        >>> is_batched(rows.shuffle(2).node), is_batched(rows.batch(2).take(1).node)
        (False, True)
    """
    if isinstance(node, _BATCHING):
        return True
    if isinstance(node, _SINGLE):
        return False
    if isinstance(node, _LIKE_PARENTS):
        found = [is_batched(parent) for parent in node.parents]
        if isinstance(node, zipping.Zipped) and set(found) != {False}:  # a scalar beside a batch: its number
            found = [
                None if one is False and _is_scalar(parent) else one
                for one, parent in zip(found, node.parents, strict=True)
            ]
        return False if False in found else None if None in found else True
    if isinstance(node, transformations.Mapping):
        before = is_batched(node.parent)
        return None if before is False and _is_scalar(node.parent) else before
    return None


def full_batches(node: Node) -> int:
    """Returns the number of batches that have the size of the first batch.

    The result is INFINITE_CARDINALITY for an infinite dataset. It is UNKNOWN_CARDINALITY after a user function, which
    may change batch sizes, and after a shuffle, which may put a smaller batch first.

    Args:
        node: The last step of the pipeline.

    Example:
        >>> from mirrored.data import Dataset
        >>> full_batches(Dataset.range(10).batch(4).repeat(3).prefetch(2).node)
        6
    """
    known = node.cardinality
    if known <= 0:
        return known
    if isinstance(node, transformations.Prefetched):
        return full_batches(node.parent)
    if isinstance(node, transformations.Repeated):
        each = full_batches(node.parent)
        return each if each < 0 else each * node.count
    if isinstance(node, transformations.Batched):
        return max(node.parent.cardinality // node.size, 1)
    return UNKNOWN_CARDINALITY


def _is_scalar(node: Node) -> bool:
    specs: list[Any] = jax.tree.leaves(_spec_or_none(node), is_leaf=lambda part: isinstance(part, ArraySpec))
    return all(isinstance(spec, ArraySpec) and not spec.shape for spec in specs)


def _spec_or_none(node: Node) -> Any:
    try:
        return node.spec
    except NoElementError:
        return None
