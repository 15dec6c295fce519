"""Type stub of `tf.nn.experimental`, written by tools/tf_stubs.py."""

from collections.abc import Iterable
from typing import Any, SupportsIndex

from mirrored.tf import Tensor

def stateless_dropout(
    x: Any,
    rate: Any,
    seed: Any,
    rng_alg: str = "auto_select",
    noise_shape: Iterable[SupportsIndex | None] | None = None,
    name: str | None = None,
) -> Tensor: ...
