"""Type stub of `tf.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.experimental import numpy as numpy
