"""Type stub of `tf.compat.v1.types`, written by tools/tf_stubs.py."""

from mirrored.tf.compat.v1.types import experimental as experimental
