"""Type stub of `tf.autodiff`, written by tools/tf_stubs.py."""

from mirrored.tape.forward_accumulator import ForwardAccumulator as ForwardAccumulator
from mirrored.tf import GradientTape as GradientTape
