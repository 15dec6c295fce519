"""Type stub of `tf.compat.v1.autograph`, written by tools/tf_stubs.py."""

from mirrored.tf.autograph import set_verbosity as set_verbosity
from mirrored.tf.compat.v1.autograph import experimental as experimental

trace = print
