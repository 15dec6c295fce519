"""Type stub of `tf.test`, written by tools/tf_stubs.py."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array
from numpy import ndarray

from mirrored.tf._test_case import TestCase as TestCase

def compute_gradient(
    f: Callable[..., Array], x: Sequence[Any], delta: float | None = None
) -> tuple[tuple[ndarray[Any, Any], ...], tuple[ndarray[Any, Any], ...]]: ...
def gpu_device_name() -> str: ...
def is_built_with_rocm() -> bool: ...
def is_built_with_xla() -> bool: ...
def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: object = None) -> bool: ...
def main(*args: Any, **kwargs: Any) -> None: ...

is_built_with_cuda = is_gpu_available
is_cpu_target_available = is_built_with_xla
