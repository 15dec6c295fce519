"""Type stub of `tf.compat.v1.random.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.random import Generator as Generator
from mirrored.tf.random import fold_in, split
from mirrored.tf.random import get_global_generator as get_global_generator
from mirrored.tf.random import set_global_generator as set_global_generator
from mirrored.tf.random import stateless_shuffle as stateless_shuffle

stateless_fold_in = fold_in
stateless_split = split
