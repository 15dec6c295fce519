"""Type stub of `tf.compat.v1.data.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.data import ThreadingOptions as ThreadingOptions
from mirrored.tf.data.experimental import AutoShardPolicy as AutoShardPolicy
from mirrored.tf.data.experimental import AutotuneAlgorithm as AutotuneAlgorithm
from mirrored.tf.data.experimental import AutotuneOptions as AutotuneOptions
from mirrored.tf.data.experimental import Counter as Counter
from mirrored.tf.data.experimental import CsvDataset as CsvDataset
from mirrored.tf.data.experimental import DistributeOptions as DistributeOptions
from mirrored.tf.data.experimental import OptimizationOptions as OptimizationOptions
from mirrored.tf.data.experimental import Optional as Optional
from mirrored.tf.data.experimental import RandomDataset as RandomDataset
from mirrored.tf.data.experimental import Reducer as Reducer
from mirrored.tf.data.experimental import assert_cardinality as assert_cardinality
from mirrored.tf.data.experimental import bucket_by_sequence_length as bucket_by_sequence_length
from mirrored.tf.data.experimental import cardinality as cardinality
from mirrored.tf.data.experimental import choose_from_datasets as choose_from_datasets
from mirrored.tf.data.experimental import copy_to_device as copy_to_device
from mirrored.tf.data.experimental import enumerate_dataset as enumerate_dataset
from mirrored.tf.data.experimental import get_single_element as get_single_element
from mirrored.tf.data.experimental import group_by_reducer as group_by_reducer
from mirrored.tf.data.experimental import group_by_window as group_by_window
from mirrored.tf.data.experimental import ignore_errors as ignore_errors
from mirrored.tf.data.experimental import make_csv_dataset as make_csv_dataset
from mirrored.tf.data.experimental import map_and_batch as map_and_batch
from mirrored.tf.data.experimental import parallel_interleave as parallel_interleave
from mirrored.tf.data.experimental import prefetch_to_device as prefetch_to_device
from mirrored.tf.data.experimental import rejection_resample as rejection_resample
from mirrored.tf.data.experimental import sample_from_datasets as sample_from_datasets
from mirrored.tf.data.experimental import scan as scan
from mirrored.tf.data.experimental import shuffle_and_repeat as shuffle_and_repeat
from mirrored.tf.data.experimental import take_while as take_while
from mirrored.tf.data.experimental import unbatch as unbatch
from mirrored.tf.data.experimental import unique as unique

AUTOTUNE: int
INFINITE_CARDINALITY: int
UNKNOWN_CARDINALITY: int
