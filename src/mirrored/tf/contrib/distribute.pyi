"""Type stub of `tf.contrib.distribute`, written by tools/tf_stubs.py."""

from mirrored.tf._distribute.contrib import MirroredStrategy as MirroredStrategy
