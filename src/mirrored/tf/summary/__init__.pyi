"""Type stub of `tf.summary`, written by tools/tf_stubs.py."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, SupportsIndex

from mirrored.tf import Tensor
from mirrored.tf._io.summary import SummaryWriter as SummaryWriter
from mirrored.tf.summary import experimental as experimental

def create_file_writer(
    logdir: str | PathLike[str],
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
    experimental_mesh: object = None,
) -> SummaryWriter: ...
def create_noop_writer() -> Any: ...
def flush(writer: SummaryWriter | None = None) -> None: ...
def histogram(
    name: str, data: Any, step: SupportsIndex | None = None, buckets: int = 30, description: str | None = None
) -> bool | Tensor: ...
def image(
    name: str, data: Any, step: SupportsIndex | None = None, max_outputs: int = 3, description: str | None = None
) -> bool | Tensor: ...
def record_if(condition: Any | Callable[[], Any]) -> AbstractContextManager[None]: ...
def scalar(
    name: str, data: Any, step: SupportsIndex | None = None, description: str | None = None
) -> bool | Tensor: ...
def should_record_summaries() -> bool | Tensor: ...
def text(
    name: str, data: object, step: SupportsIndex | None = None, description: str | None = None
) -> bool | Tensor: ...
def trace_export(
    name: str, step: SupportsIndex | None = None, profiler_outdir: str | PathLike[str] | None = None
) -> None: ...
def trace_off() -> None: ...
def trace_on(
    graph: bool = True, profiler: bool = False, profiler_outdir: str | PathLike[str] | None = None
) -> None: ...
def write(
    tag: str, tensor: Any, step: SupportsIndex | None = None, metadata: object = None, name: str | None = None
) -> bool | Tensor: ...
