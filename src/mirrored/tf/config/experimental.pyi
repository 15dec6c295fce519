"""Type stub of `tf.config.experimental`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf.config import (
    LogicalDeviceConfiguration,
    PhysicalDevice,
    get_logical_device_configuration,
    set_logical_device_configuration,
)
from mirrored.tf.config import get_visible_devices as get_visible_devices
from mirrored.tf.config import list_logical_devices as list_logical_devices
from mirrored.tf.config import list_physical_devices as list_physical_devices
from mirrored.tf.config import set_visible_devices as set_visible_devices

def enable_op_determinism() -> None: ...
def get_device_details(device: PhysicalDevice) -> dict[str, Any]: ...
def get_memory_growth(device: PhysicalDevice) -> bool | None: ...
def get_memory_info(device: str) -> dict[str, int]: ...
def set_memory_growth(device: PhysicalDevice, enable: bool) -> None: ...

VirtualDeviceConfiguration = LogicalDeviceConfiguration
get_virtual_device_configuration = get_logical_device_configuration
set_virtual_device_configuration = set_logical_device_configuration
