"""Type stub of `tf.compat.v1.config.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.config import (
    LogicalDeviceConfiguration,
    get_logical_device_configuration,
    set_logical_device_configuration,
)
from mirrored.tf.config import get_visible_devices as get_visible_devices
from mirrored.tf.config import list_logical_devices as list_logical_devices
from mirrored.tf.config import list_physical_devices as list_physical_devices
from mirrored.tf.config import set_visible_devices as set_visible_devices
from mirrored.tf.config.experimental import get_device_details as get_device_details
from mirrored.tf.config.experimental import get_memory_growth as get_memory_growth
from mirrored.tf.config.experimental import get_memory_info as get_memory_info
from mirrored.tf.config.experimental import set_memory_growth as set_memory_growth

VirtualDeviceConfiguration = LogicalDeviceConfiguration
get_virtual_device_configuration = get_logical_device_configuration
set_virtual_device_configuration = set_logical_device_configuration
