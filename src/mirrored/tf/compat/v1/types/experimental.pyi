"""Type stub of `tf.compat.v1.types.experimental`, written by tools/tf_stubs.py."""

from typing import Any, TypeAlias

TensorLike: TypeAlias = Any
