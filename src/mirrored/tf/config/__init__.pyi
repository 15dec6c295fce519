"""Type stub of `tf.config`, written by tools/tf_stubs.py."""

from collections.abc import Sequence

from mirrored import functions_run_eagerly as functions_run_eagerly
from mirrored import run_functions_eagerly as run_functions_eagerly
from mirrored.tf._config import LogicalDevice as LogicalDevice
from mirrored.tf._config import LogicalDeviceConfiguration as LogicalDeviceConfiguration
from mirrored.tf._config import PhysicalDevice as PhysicalDevice
from mirrored.tf.config import experimental as experimental
from mirrored.tf.config import optimizer as optimizer
from mirrored.tf.config import threading as threading

def get_logical_device_configuration(device: PhysicalDevice) -> list[LogicalDeviceConfiguration] | None: ...
def get_soft_device_placement() -> bool: ...
def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]: ...
def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]: ...
def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]: ...
def set_logical_device_configuration(
    device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None: ...
def set_soft_device_placement(enabled: bool) -> None: ...
def set_visible_devices(
    devices: PhysicalDevice | list[PhysicalDevice] | tuple[PhysicalDevice, ...], device_type: str | None = None
) -> None: ...

experimental_functions_run_eagerly = functions_run_eagerly
experimental_run_functions_eagerly = run_functions_eagerly
