"""Type stub of `tf.contrib`, written by tools/tf_stubs.py."""

from mirrored.tf.contrib import distribute as distribute
