"""A digest of the data that a pipeline reads, by which workers see that their pipelines read different data.

The read positions of such pipelines can be equal, and mean different examples. The digest covers what a pipeline's
sources are made from: the bounds of ranges, values in memory, the beginnings and ends of files, and the arguments of a
generator. It does not call functions of the program, which may have effects, or return other values each time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from mirrored._jax.trees import tree_flatten
from mirrored.data.pipeline.files import FileSource
from mirrored.data.pipeline.indexed_sources import ArraySource, ListSource, RangeSource
from mirrored.data.pipeline.nodes import Node, nodes
from mirrored.data.pipeline.storing import StoredSource
from mirrored.data.pipeline.streams import IterableSource
from mirrored.data.pipeline.transformations import Prefetched

_MOST_BYTES: Final = 64 * 2**20  # of an array; of a larger one, evenly spaced rows
_MOST_ELEMENTS: Final = 1000
_MOST_FILES: Final = 32
_NOT_OF_DATA: Final = frozenset({"seed", "num_parallel_calls"})
_END_BYTES: Final = 4096  # at the beginning and at the end of a file

_known: Final = weakref.WeakKeyDictionary[Node, str]()  # by source: the data of a source does not change


def digest_of(node: Node) -> str:
    """Returns a digest of the data that a dataset reads, given its last operation."""
    hasher = hashlib.blake2b(digest_size=16)
    for step in {id(step): step for step in nodes(node)}.values():
        if step not in _known:
            _known[step] = _of_step(step) if step.parents else _of_source(step)
        hasher.update(_known[step].encode())
    return hasher.hexdigest()


def _of_step(step: Node) -> str:
    """Returns the whole numbers on which the elements depend, such as those of `shard` and `skip`; no random seed."""
    numbers = [(name, one) for name, one in vars(step).items() if type(one) is int and name not in _NOT_OF_DATA]
    return f"{step.name} {[] if isinstance(step, Prefetched) else numbers};"


def _of_source(source: Node) -> str:
    hasher = hashlib.blake2b(source.name.encode(), digest_size=16)
    if isinstance(source, RangeSource):
        hasher.update(repr(source.numbers).encode())
    elif isinstance(source, ArraySource):
        _add_value(hasher, source.arrays)
    elif isinstance(source, ListSource):
        _add_some(hasher, source.elements, _MOST_ELEMENTS, _add_value)
    elif isinstance(source, FileSource):
        _add_some(hasher, source.files, _MOST_FILES, _add_file)
    elif isinstance(source, StoredSource):
        _add_file(hasher, source.stored.path)
    elif isinstance(source, IterableSource) and isinstance(source.make, functools.partial):
        _add_value(hasher, list(source.make.args))
    return hasher.hexdigest()


def _add_some(
    hasher: hashlib.blake2b, values: Sequence[Any], most: int, add: Callable[[hashlib.blake2b, Any], None]
) -> None:
    """Adds the number of values, and evenly spaced ones with the first and the last one."""
    hasher.update(f"{len(values)} values".encode())
    for index in np.linspace(0, len(values) - 1, min(len(values), most)).astype(int):
        add(hasher, values[index])


def _add_value(hasher: hashlib.blake2b, value: Any) -> None:
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, np.ndarray):
            _add_array(hasher, leaf)
        elif isinstance(leaf, (bool, int, float, complex, str, bytes, range, np.generic)):
            hasher.update(f"{leaf!r};".encode())
        else:  # objects can have another text in every process
            hasher.update(f"{type(leaf).__name__};".encode())


def _add_array(hasher: hashlib.blake2b, array: np.ndarray[Any, Any]) -> None:
    hasher.update(f"{array.dtype}{array.shape}".encode())
    if array.nbytes > _MOST_BYTES and array.ndim:
        count = max(1, _MOST_BYTES * len(array) // array.nbytes)
        array = array[np.linspace(0, len(array) - 1, count).astype(int)]
    if array.dtype.hasobject:
        for leaf in array.ravel().tolist():
            _add_value(hasher, leaf)
    else:
        hasher.update(f"{zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))};".encode())


def _add_file(hasher: hashlib.blake2b, path: str) -> None:
    """Adds the size and the ends of a file, not its path: each worker can have its own copy of the same data."""
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # reading from a pipe would take what it contains
            return
        with open(path, "rb") as file:
            beginning = file.read(_END_BYTES)
            file.seek(max(0, about.st_size - _END_BYTES))
            hasher.update(f"{about.st_size}".encode() + beginning + file.read(_END_BYTES))
    except OSError:  # the iterator raises an error of its own
        hasher.update(b"no file")
