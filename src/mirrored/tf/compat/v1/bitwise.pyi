"""Type stub of `tf.compat.v1.bitwise`, written by tools/tf_stubs.py."""

from mirrored.tf.bitwise import bitwise_and as bitwise_and
from mirrored.tf.bitwise import bitwise_or as bitwise_or
from mirrored.tf.bitwise import bitwise_xor as bitwise_xor
from mirrored.tf.bitwise import invert as invert
from mirrored.tf.bitwise import left_shift as left_shift
from mirrored.tf.bitwise import right_shift as right_shift
