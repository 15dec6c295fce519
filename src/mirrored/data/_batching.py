"""Whether the elements of a pipeline are batches, as far as its steps tell."""

from __future__ import annotations

from typing import Any, Final

import jax

from mirrored.data import _caching, _csv, _files, _indexed, _indexed_sources, _shuffling, _stateful, _storing, _streams
from mirrored.data._pipeline import Node
from mirrored.data.specs import ArraySpec

_BATCHING: Final = (
    _csv.CsvBatches,
    _indexed.Batched,
    _indexed.PaddedBatched,
    _streams.Rebatched,
    _streams.StreamBatched,
)
_SINGLE: Final = (
    _csv.CsvRows,
    _files.FileSource,
    _indexed_sources.ArraySource,
    _indexed_sources.RangeSource,
    _streams.Unbatched,
)
_LIKE_PARENTS: Final = (
    _caching.Cached,
    _caching.StreamCached,
    _indexed.Concatenated,
    _indexed.Prefetched,
    _indexed.Repeated,
    _indexed.Sliced,
    _indexed.Zipped,
    _shuffling.Shuffled,
    _shuffling.StreamShuffled,
    _stateful.Promised,
    _stateful.TakenWhile,
    _storing.Kept,
    _streams.Filtered,
    _streams.Limited,
    _streams.StreamConcatenated,
    _streams.StreamPrefetched,
    _streams.StreamRepeated,
    _streams.StreamZipped,
    _streams.Strided,
)
_MAPPING: Final = (_indexed.Mapped, _indexed.RandomMapped, _streams.StreamMapped, _streams.StreamRandomMapped)


def is_batched(node: Node) -> bool | None:
    """Whether the elements are batches; None where the steps do not tell.

    A generator, a tensor (`from_tensors`) and a function of scalars (names of files, say) may give either.

    Args:
        node: The last step.

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
        return False if False in found else None if None in found else True
    if isinstance(node, _MAPPING):
        before = is_batched(node.parent)
        return None if before is False and _is_scalar(node.parent) else before
    return None


def _is_scalar(node: Node) -> bool:
    specs: list[Any] = jax.tree.leaves(_spec_or_none(node), is_leaf=lambda part: isinstance(part, ArraySpec))
    return all(isinstance(spec, ArraySpec) and not spec.shape for spec in specs)


def _spec_or_none(node: Node) -> Any:
    try:
        return node.spec
    except StopIteration:  # no element to ask
        return None
