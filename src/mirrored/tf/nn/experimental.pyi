"""Type stub of `tf.nn.experimental`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf import Tensor

def stateless_dropout(
    x: Any, rate: Any, seed: Any, rng_alg: str = "auto_select", noise_shape: Any = None, name: str | None = None
) -> Tensor: ...
