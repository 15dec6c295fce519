"""Type stub of `tf.compat.v1.nest`, written by tools/tf_stubs.py."""

from mirrored.tf.nest import assert_same_structure as assert_same_structure
from mirrored.tf.nest import flatten as flatten
from mirrored.tf.nest import is_nested as is_nested
from mirrored.tf.nest import map_structure as map_structure
from mirrored.tf.nest import pack_sequence_as as pack_sequence_as
