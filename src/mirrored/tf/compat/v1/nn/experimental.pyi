"""Type stub of `tf.compat.v1.nn.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.nn.experimental import stateless_dropout as stateless_dropout
