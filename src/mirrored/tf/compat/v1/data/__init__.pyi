"""Type stub of `tf.compat.v1.data`, written by tools/tf_stubs.py."""

from mirrored.tf.compat.v1.data import experimental as experimental
from mirrored.tf.data import Options as Options
from mirrored.tf.data import ThreadingOptions as ThreadingOptions

AUTOTUNE: int
INFINITE_CARDINALITY: int
UNKNOWN_CARDINALITY: int
