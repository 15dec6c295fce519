"""Type stub of `tf.test`, written by tools/tf_stubs.py."""

from unittest.main import TestProgram

from mirrored.tf._test_case import TestCase as TestCase

def gpu_device_name() -> str: ...
def is_built_with_rocm() -> bool: ...
def is_built_with_xla() -> bool: ...
def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: object = None) -> bool: ...

is_built_with_cuda = is_gpu_available
is_cpu_target_available = is_built_with_xla
main = TestProgram
