"""Type stub of `tf.compat.v1.autograph.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.autograph.experimental import do_not_convert as do_not_convert
from mirrored.tf.autograph.experimental import set_loop_options as set_loop_options
