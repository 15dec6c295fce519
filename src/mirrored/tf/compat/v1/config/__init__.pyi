"""Type stub of `tf.compat.v1.config`, written by tools/tf_stubs.py."""

from mirrored.tf.compat.v1.config import experimental as experimental
from mirrored.tf.compat.v1.config import optimizer as optimizer
from mirrored.tf.compat.v1.config import threading as threading
from mirrored.tf.config import LogicalDevice as LogicalDevice
from mirrored.tf.config import LogicalDeviceConfiguration as LogicalDeviceConfiguration
from mirrored.tf.config import PhysicalDevice as PhysicalDevice
from mirrored.tf.config import functions_run_eagerly as _functions_run_eagerly
from mirrored.tf.config import functions_run_eagerly as functions_run_eagerly
from mirrored.tf.config import get_logical_device_configuration as get_logical_device_configuration
from mirrored.tf.config import get_soft_device_placement as get_soft_device_placement
from mirrored.tf.config import get_visible_devices as get_visible_devices
from mirrored.tf.config import list_logical_devices as list_logical_devices
from mirrored.tf.config import list_physical_devices as list_physical_devices
from mirrored.tf.config import run_functions_eagerly as _run_functions_eagerly
from mirrored.tf.config import run_functions_eagerly as run_functions_eagerly
from mirrored.tf.config import set_logical_device_configuration as set_logical_device_configuration
from mirrored.tf.config import set_soft_device_placement as set_soft_device_placement
from mirrored.tf.config import set_visible_devices as set_visible_devices

experimental_functions_run_eagerly = _functions_run_eagerly
experimental_run_functions_eagerly = _run_functions_eagerly
