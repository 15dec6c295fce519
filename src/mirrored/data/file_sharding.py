"""File sharding (`AutoShardPolicy.FILE`): rewrites a pipeline so that each of n workers reads every n-th file."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from mirrored.data.files import FileSource
from mirrored.data.indexed import Sliced
from mirrored.data.indexed_sources import ArraySource, ListSource
from mirrored.data.pipeline import Node, nodes
from mirrored.errors import ArgumentError


def files_of_worker(node: Node, worker: int, workers: int, called: str) -> Node:
    """Returns the pipeline over the files of one worker: file `worker` and every `workers`-th file after it.

    The files are those passed to a `TextLineDataset` or `TFRecordDataset`. If the pipeline opens files in a function
    (`interleave`, `flat_map`), they are the names from `list_files` or `from_tensor_slices`.

    Raises:
        ArgumentError: The pipeline reads no files, or fewer files than there are workers.
    """
    found = [step for step in nodes(node) if _files_in(step)]
    counts = [_files_in(step) for step in found]
    if not counts or min(counts) < workers:
        what = "no files" if not counts else f"{min(counts)} files"
        raise ArgumentError(
            called,
            found=f"AutoShardPolicy.FILE for {workers} workers, and a dataset of {what}",
            rule="each worker reads at least one file that no other worker reads",
            remedy="use AutoShardPolicy.DATA (or AUTO), or split the data into at least as many files as workers",
        )
    replaced: Node = _replaced(node, {id(step) for step in found}, worker, workers)
    return replaced


def _replaced(node: Any, wanted: set[int], worker: int, workers: int) -> Any:
    if id(node) in wanted:
        if isinstance(node, FileSource):
            return dataclasses.replace(node, files=node.files[worker::workers])
        return Sliced(node, worker, None, workers)

    def renewed(value: Any) -> Any:
        if isinstance(value, Node):
            return _replaced(value, wanted, worker, workers)
        if isinstance(value, tuple) and any(isinstance(one, Node) for one in value):
            return tuple(renewed(one) for one in value)
        return value

    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.init}
    changed = {name: renewed(value) for name, value in fields.items()}
    return node if all(changed[name] is fields[name] for name in fields) else dataclasses.replace(node, **changed)


def _files_in(node: Node) -> int:
    """Returns the number of files that a node lists; 0 if it is not a source of files."""
    if isinstance(node, FileSource):
        return len(node.files)
    if isinstance(node, ListSource):
        return len(node.elements) if all(isinstance(one, bytes) for one in node.elements) else 0
    if isinstance(node, ArraySource):
        leaves = jax.tree.leaves(node.arrays)
        return node.length if len(leaves) == 1 and _are_names(leaves[0]) else 0
    return 0


def _are_names(array: Any) -> bool:
    values = np.asarray(array)
    return values.ndim == 1 and values.dtype.kind in "OSU" and all(isinstance(one, (bytes, str)) for one in values)
