"""Type stub of `tf.compat.v1.types.experimental`, written by tools/tf_stubs.py."""

from typing import Any, TypeAlias

from mirrored.tf.types.experimental import ConcreteFunction as ConcreteFunction

TensorLike: TypeAlias = Any
