"""File sharding (`AutoShardPolicy.FILE`): rewrites a pipeline so that each of n workers reads every n-th file."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mirrored.data.pipeline.files import FileSource
from mirrored.data.pipeline.indexed_sources import ArraySource, Chosen, ListSource, RangeSource
from mirrored.data.pipeline.nodes import ENDLESS, Node, nodes
from mirrored.data.pipeline.shuffling import Uniform
from mirrored.data.pipeline.streams import Interleaved
from mirrored.data.pipeline.transformations import Concatenated, Several, Sliced
from mirrored.errors import ArgumentError


def files_of_worker(node: Node, worker: int, workers: int, called: str) -> Node:
    """Restricts a file dataset to one worker's shard of the files: every `workers`-th file.

    The files are those passed to a `TextLineDataset` or `TFRecordDataset`. If the pipeline opens files in a function
    (`interleave`, `flat_map`), they are the names from `list_files` or `from_tensor_slices`.

    Raises:
        ArgumentError: The pipeline reads no files, or fewer files than there are workers; or it combines datasets with
            and without files.
    """
    found = [step for step in nodes(node) if _files_in(step)]
    counts = [_files_in(step) for step in found]
    if not counts or min(counts) < workers:
        what = "no files" if not counts else f"{min(counts)} files"
        raise ArgumentError(
            called,
            found=f"AutoShardPolicy.FILE for {workers} workers, and a dataset of {what}",
            rule="each worker must have at least one file that no other worker reads",
            remedy="use AutoShardPolicy.DATA (or AUTO), or split the data into at least as many files as workers",
        )
    for step in nodes(node):
        _check_all_have_files(step, called)
    wanted = {id(step) for step in found}

    def shard(step: Node) -> Node | None:
        if id(step) not in wanted:
            return None
        if isinstance(step, FileSource):
            return dataclasses.replace(step, files=step.files[worker::workers])
        return Sliced(step, worker, None, workers)

    copy: Node = _rewritten(node, shard, lambda step: step.fields_of_worker(worker, workers))
    return copy


def without_caches(node: Node) -> Node:
    """Returns a copy of a pipeline without its cache operations, so that reading the copy fills no cache."""

    def parent_of_cache(step: Node) -> Node | None:
        return without_caches(step.parents[0]) if step.keeps_elements else None

    copy: Node = _rewritten(node, parent_of_cache, lambda _: {})
    return copy


def _rewritten(
    node: Any,
    replacement: Callable[[Node], Node | None],
    further: Callable[[Node], dict[str, Any]],
    copies: dict[int, Any] | None = None,
) -> Any:
    """Returns a pipeline with some operations replaced, and with copies of the operations that depend on them.

    Args:
        node: The last operation of the pipeline.
        replacement: Returns what takes the place of an operation; None if it stays.
        further: Returns other fields that change in an operation that is copied.
        copies: What has taken the place of each operation so far, by its `id`: a shared operation stays shared.
    """
    copies = {} if copies is None else copies
    if id(node) not in copies:
        replaced = replacement(node)
        copies[id(node)] = _copy(node, replacement, further, copies) if replaced is None else replaced
    return copies[id(node)]


def _copy(
    node: Any,
    replacement: Callable[[Node], Node | None],
    further: Callable[[Node], dict[str, Any]],
    copies: dict[int, Any],
) -> Any:
    def renewed(value: object) -> Any:
        if isinstance(value, Node):
            return _rewritten(value, replacement, further, copies)
        if isinstance(value, tuple) and any(isinstance(one, Node) for one in value):
            parts = [renewed(one) for one in value]
            return value if all(map(operator.is_, parts, value)) else type(value)(parts)
        return value

    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.init}
    changed = {name: renewed(value) for name, value in fields.items()}
    if all(changed[name] is fields[name] for name in fields):
        return node
    return dataclasses.replace(node, **{**changed, **further(node)})


def _check_all_have_files(step: Node, called: str) -> None:
    """Raises ArgumentError if an operation combines file datasets with others, which cannot be sharded by files.

    Pairs of `zip` would not belong together; the others' elements would be read by each worker.
    """
    inputs: Sequence[Node] = ()
    if isinstance(step, Several):
        inputs = (
            step.members
            if isinstance(step, Concatenated)
            else [one for one in step.members if not _needs_no_sharding(one)]
        )
    elif isinstance(step, Chosen):  # choices decide the order alone, unless files contain them
        inputs = [*step.members, *([step.choices] if _has_files(step.choices) else [])]
    if isinstance(step, Several) and not isinstance(step, Concatenated):
        _check_pairs(inputs, called)
    without = [one for one in inputs if not _has_files(one)]
    if without and len(without) < len(inputs):
        raise ArgumentError(
            called,
            found=f"AutoShardPolicy.FILE, and {step.name} of a dataset of files and one without ({without[0].name})",
            rule="each worker reads its own files, and no part of the data that does not come from files: it would "
            "combine them with the wrong elements, or use the same elements as the others",
            remedy="use AutoShardPolicy.DATA (or AUTO), or read all of the data from files",
        )


def _check_pairs(inputs: Sequence[Node], called: str) -> None:
    """Raises ArgumentError if the inputs of a `zip` have different numbers of files, because shards would not match."""
    sources = [[step for step in nodes(one) if isinstance(step, FileSource)] for one in inputs]
    counts = sorted({len(source.files) for found in sources for source in found})
    texts = any(
        not found and _has_files(one) and not any(isinstance(step, Interleaved) for step in nodes(one))
        for one, found in zip(inputs, sources, strict=True)
    )
    if len(counts) > 1 or (counts and texts):
        what = "texts in memory" if texts else " and ".join(f"{count} files" for count in counts)
        raise ArgumentError(
            called,
            found=f"AutoShardPolicy.FILE, and `zip` of lines or records of files with {what}",
            rule="each worker reads every n-th file of each dataset, so the elements pair only if all datasets of the "
            "`zip` have the same number of files",
            remedy="use AutoShardPolicy.DATA (or AUTO), or read all of the data from as many files",
        )


def _needs_no_sharding(node: Node) -> bool:
    """Returns whether a dataset needs no sharding: it yields one constant, random numbers, or an infinite range."""
    return all(
        isinstance(step, Uniform)
        or (isinstance(step, RangeSource) and step.length >= ENDLESS)
        or (isinstance(step, ListSource) and step.length == 1)
        for step in nodes(node)
        if not step.parents
    )


def _has_files(node: Node) -> bool:
    return any(_files_in(step) for step in nodes(node))


def _files_in(node: Node) -> int:
    """Returns the number of files that a dataset operation lists; 0 if the operation is not a source of files."""
    if isinstance(node, FileSource):
        return len(node.files)
    if isinstance(node, ListSource):
        return len(node.elements) if all(isinstance(one, bytes) for one in node.elements) else 0
    if isinstance(node, ArraySource):
        leaves = jax.tree.leaves(node.arrays)
        return node.length if len(leaves) == 1 and _are_names(leaves[0]) else 0
    return 0


def _are_names(array: object) -> bool:
    values = np.asarray(array)
    return values.ndim == 1 and values.dtype.kind in "OSU" and all(isinstance(one, (bytes, str)) for one in values)
