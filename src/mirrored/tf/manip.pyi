"""Type stub of `tf.manip`, written by tools/tf_stubs.py."""

from mirrored.tf import reshape as reshape
from mirrored.tf import tile as tile
