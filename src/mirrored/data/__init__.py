"""Input pipelines: datasets built on Grain, and their distribution over replicas."""

from __future__ import annotations

from mirrored.data.distributed import DistributedDataset as DistributedDataset
from mirrored.data.distributed import DistributedIterator as DistributedIterator
from mirrored.data.distribution import PerReplicaSpec as PerReplicaSpec
from mirrored.data.distribution import distribute_dataset as distribute_dataset
from mirrored.data.distribution import distribute_from_function as distribute_from_function
from mirrored.data.feed import InputStats as InputStats
from mirrored.data.input_options import InputContext as InputContext
from mirrored.data.input_options import InputOptions as InputOptions
from mirrored.data.input_options import InputReplicationMode as InputReplicationMode
from mirrored.data.legacy import InputIterator as InputIterator
from mirrored.data.legacy import make_dataset_iterator as make_dataset_iterator
from mirrored.data.legacy import make_input_fn_iterator as make_input_fn_iterator
from mirrored.data.options import AUTOTUNE as AUTOTUNE
from mirrored.data.options import INFINITE_CARDINALITY as INFINITE_CARDINALITY
from mirrored.data.options import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
from mirrored.data.options import AutoShardPolicy as AutoShardPolicy
from mirrored.data.options import DistributeOptions as DistributeOptions
from mirrored.data.options import Optional as Optional
from mirrored.data.options import Options as Options
from mirrored.data.pipeline.dataset import Dataset as Dataset
from mirrored.data.pipeline.dataset import TextLineDataset as TextLineDataset
from mirrored.data.pipeline.dataset import TFRecordDataset as TFRecordDataset
from mirrored.data.pipeline.iterators import DatasetIterator as DatasetIterator
from mirrored.data.specs import ArraySpec as ArraySpec
