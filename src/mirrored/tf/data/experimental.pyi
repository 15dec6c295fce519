"""Type stub of `tf.data.experimental`, written by tools/tf_stubs.py."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

from jax import Array
from numpy import dtype, ndarray

from mirrored.data import AutoShardPolicy as AutoShardPolicy
from mirrored.data import AutotuneAlgorithm as AutotuneAlgorithm
from mirrored.data import AutotuneOptions as AutotuneOptions
from mirrored.data import DistributeOptions as DistributeOptions
from mirrored.data import OptimizationOptions as OptimizationOptions
from mirrored.data import Optional as Optional
from mirrored.data.pipeline.sampling import NamedDType
from mirrored.data.pipeline.steps import Steps
from mirrored.tf._data.experimental import Reducer as Reducer
from mirrored.tf.data import Dataset
from mirrored.tf.data import ThreadingOptions as ThreadingOptions

AUTOTUNE: int
INFINITE_CARDINALITY: int
UNKNOWN_CARDINALITY: int

def Counter(start: int = 0, step: int = 1, dtype: str | type[Any] | dtype[Any] | NamedDType = ...) -> Dataset: ...
def CsvDataset(
    filenames: str | bytes | PathLike[Any] | Sequence[str | bytes | PathLike[Any]] | ndarray[Any, Any] | Array | Steps,
    record_defaults: Sequence[Any],
    compression_type: str | None = None,
    buffer_size: int | None = None,
    header: bool = False,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    exclude_cols: Sequence[int] | None = None,
) -> Dataset: ...
def RandomDataset(seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Dataset: ...
def assert_cardinality(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def bucket_by_sequence_length(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def cardinality(dataset: Dataset) -> Any: ...
def choose_from_datasets(
    datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = False
) -> Dataset: ...
def copy_to_device(target_device: object, source_device: object = None) -> Callable[[Dataset], Dataset]: ...
def enumerate_dataset(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def get_single_element(dataset: Dataset) -> Any: ...
def group_by_reducer(key_func: Callable[..., Any], reducer: Reducer) -> Callable[[Dataset], Dataset]: ...
def group_by_window(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def ignore_errors(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def make_csv_dataset(
    file_pattern: str | bytes | PathLike[Any] | Sequence[str | bytes | PathLike[Any]] | ndarray[Any, Any] | Array,
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[Any] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
    ignore_errors: bool = False,
    encoding: str = "utf-8",
) -> Dataset: ...
def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Callable[[Dataset], Dataset]: ...
def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool | None = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Callable[[Dataset], Dataset]: ...
def prefetch_to_device(device: object, buffer_size: int | None = None) -> Callable[[Dataset], Dataset]: ...
def rejection_resample(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def sample_from_datasets(
    datasets: Sequence[Steps],
    weights: Sequence[float] | ndarray[Any, Any] | Array | Steps | None = None,
    seed: int | None = None,
    stop_on_empty_dataset: bool = False,
    rerandomize_each_iteration: bool | None = None,
) -> Dataset: ...
def scan(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def shuffle_and_repeat(
    buffer_size: int, count: int | None = None, seed: int | None = None
) -> Callable[[Dataset], Dataset]: ...
def take_while(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def unbatch(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
def unique(*args: Any, **kwargs: Any) -> Callable[[Dataset], Dataset]: ...
