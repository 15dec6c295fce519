"""Type stub of `tf.compat.v1.config.optimizer`, written by tools/tf_stubs.py."""

from mirrored.tf.config.optimizer import get_experimental_options as get_experimental_options
from mirrored.tf.config.optimizer import get_jit as get_jit
from mirrored.tf.config.optimizer import set_experimental_options as set_experimental_options
from mirrored.tf.config.optimizer import set_jit as set_jit
