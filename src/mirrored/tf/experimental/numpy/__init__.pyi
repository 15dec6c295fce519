"""Type stub of `tf.experimental.numpy`, written by tools/tf_stubs.py."""

import builtins

from jax.numpy import *  # noqa: F403

from mirrored.tf.experimental.numpy import random as random

def experimental_enable_numpy_behavior(
    prefer_float32: builtins.bool = False, dtype_conversion_mode: str = "legacy"
) -> None: ...
