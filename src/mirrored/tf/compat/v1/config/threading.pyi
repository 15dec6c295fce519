"""Type stub of `tf.compat.v1.config.threading`, written by tools/tf_stubs.py."""

from mirrored.tf.config.threading import get_inter_op_parallelism_threads as get_inter_op_parallelism_threads
from mirrored.tf.config.threading import get_intra_op_parallelism_threads as get_intra_op_parallelism_threads
from mirrored.tf.config.threading import set_inter_op_parallelism_threads as set_inter_op_parallelism_threads
from mirrored.tf.config.threading import set_intra_op_parallelism_threads as set_intra_op_parallelism_threads
