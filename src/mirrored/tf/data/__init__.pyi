"""Type stub of `tf.data`, written by tools/tf_stubs.py."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from jax import Array
from numpy import ndarray

from mirrored.data import Options as Options
from mirrored.data import ThreadingOptions as ThreadingOptions
from mirrored.data.pipeline.steps import Steps
from mirrored.tf._data.datasets import Dataset as Dataset
from mirrored.tf.data import experimental as experimental

AUTOTUNE: int
INFINITE_CARDINALITY: int
UNKNOWN_CARDINALITY: int

def TFRecordDataset(
    filenames: str | bytes | PathLike[Any] | Sequence[str | bytes | PathLike[Any]] | ndarray[Any, Any] | Array | Steps,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    name: str | None = None,
) -> Dataset: ...
def TextLineDataset(
    filenames: str | bytes | PathLike[Any] | Sequence[str | bytes | PathLike[Any]] | ndarray[Any, Any] | Array | Steps,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    name: str | None = None,
) -> Dataset: ...
