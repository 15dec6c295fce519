"""Type stub of `tf.compat.v1`, written by tools/tf_stubs.py."""

from mirrored.tf._compat import ConfigProto as ConfigProto
from mirrored.tf.compat.v1 import distribute as distribute
from mirrored.tf.compat.v1 import logging as logging
from mirrored.tf.compat.v1 import losses as losses
from mirrored.tf.compat.v1 import train as train
from mirrored.tf.random import set_seed

def disable_eager_execution() -> None: ...
def enable_eager_execution() -> None: ...

disable_v2_behavior = disable_eager_execution
enable_resource_variables = enable_eager_execution
enable_v2_behavior = enable_eager_execution
enable_v2_tensorshape = enable_eager_execution
set_random_seed = set_seed
