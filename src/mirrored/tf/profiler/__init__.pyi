"""Type stub of `tf.profiler`, written by tools/tf_stubs.py."""

from mirrored.tf.profiler import experimental as experimental
