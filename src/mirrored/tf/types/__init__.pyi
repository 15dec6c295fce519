"""Type stub of `tf.types`, written by tools/tf_stubs.py."""

from mirrored.tf.types import experimental as experimental
