"""Input pipelines: datasets like `tf.data.Dataset`, built on Grain, and their distribution over replicas."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mirrored._typing import PyTree
from mirrored.data.distributed import DistributedDataset as DistributedDataset
from mirrored.data.distributed import DistributedIterator as DistributedIterator
from mirrored.data.distribution import PerReplicaSpec as PerReplicaSpec
from mirrored.data.distribution import distribute_dataset as distribute_dataset
from mirrored.data.distribution import distribute_from_function as distribute_from_function
from mirrored.data.feed import InputStats as InputStats
from mirrored.data.input_options import InputContext as InputContext
from mirrored.data.input_options import InputOptions as InputOptions
from mirrored.data.input_options import InputReplicationMode as InputReplicationMode
from mirrored.data.options import AUTOTUNE as AUTOTUNE
from mirrored.data.options import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from mirrored.data.options import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from mirrored.data.options import AutoShardPolicy as AutoShardPolicy
from mirrored.data.options import AutotuneAlgorithm as AutotuneAlgorithm
from mirrored.data.options import AutotuneOptions as AutotuneOptions
from mirrored.data.options import DistributeOptions as DistributeOptions
from mirrored.data.options import OptimizationOptions as OptimizationOptions
from mirrored.data.options import Optional as Optional
from mirrored.data.options import Options as Options
from mirrored.data.options import ThreadingOptions as ThreadingOptions
from mirrored.data.sources import Source, register_arrays
from mirrored.data.specs import ArraySpec as ArraySpec

if TYPE_CHECKING:  # what `__getattr__` loads
    from mirrored.data.pipeline.dataset import Dataset as Dataset
    from mirrored.data.pipeline.dataset import TextLineDataset as TextLineDataset
    from mirrored.data.pipeline.dataset import TFRecordDataset as TFRecordDataset
    from mirrored.data.pipeline.iterators import DatasetIterator as DatasetIterator

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "ArraySpec",
    "AutoShardPolicy",
    "AutotuneAlgorithm",
    "AutotuneOptions",
    "Dataset",
    "DatasetIterator",
    "DistributeOptions",
    "DistributedDataset",
    "DistributedIterator",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "InputStats",
    "OptimizationOptions",
    "Optional",
    "Options",
    "PerReplicaSpec",
    "TFRecordDataset",
    "TextLineDataset",
    "ThreadingOptions",
    "distribute_dataset",
    "distribute_from_function",
]

_PIPELINE = {
    "Dataset": "mirrored.data.pipeline.dataset",
    "DatasetIterator": "mirrored.data.pipeline.iterators",
    "TFRecordDataset": "mirrored.data.pipeline.dataset",
    "TextLineDataset": "mirrored.data.pipeline.dataset",
}


def _source_of_arrays(arrays: PyTree, examples_per_batch: int) -> Source:
    source: Source = importlib.import_module("mirrored.data.pipeline").source_of_arrays(arrays, examples_per_batch)
    return source


register_arrays(_source_of_arrays)

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts every name

    def __getattr__(name: str) -> Any:
        """Imports `Dataset` and related classes from `mirrored.data.pipeline` when they are first accessed."""
        if name not in _PIPELINE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(_PIPELINE[name]), name)
        return globals()[name]


def __dir__() -> list[str]:
    """Returns the module's names, including those of classes that are imported on first access."""
    return sorted({*globals(), *_PIPELINE})
