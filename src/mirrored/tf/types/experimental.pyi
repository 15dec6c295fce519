"""Type stub of `tf.types.experimental`, written by tools/tf_stubs.py."""

from typing import Any, TypeAlias

from mirrored.tf._concrete import ConcreteFunction as ConcreteFunction

TensorLike: TypeAlias = Any
