"""Type stub of `tf.data`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.data import Options as Options
from mirrored.tf._data.datasets import Dataset as Dataset
from mirrored.tf.data import experimental as experimental

AUTOTUNE: int
INFINITE_CARDINALITY: int
UNKNOWN_CARDINALITY: int

def TFRecordDataset(filenames: Any, compression_type: str | None = None) -> Dataset: ...
def TextLineDataset(filenames: Any, compression_type: str | None = None) -> Dataset: ...
