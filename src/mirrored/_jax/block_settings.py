"""Applies the JAX settings of a replica's ``with`` block to the operations that all replicas execute together.

A merge runs in the thread that has started the replicas. JAX's settings belong to a thread, so those of a block in the
replica function do not reach it: arrays of 64 bits would be narrowed there, and the function of a `merge_call` would
multiply matrices in another precision than in a compiled run with one replica per device, whose merges run in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

T = TypeVar("T")


class BlockSettings(NamedTuple):
    """The JAX settings of one thread that change the results of operations.

    Attributes:
        is_64_bit: Whether arrays can have 64 bits (`jax.enable_x64`).
        precision: The precision of matrix products (`jax.default_matmul_precision`).
        promotion: How operands of different dtypes are promoted (`jax.numpy_dtype_promotion`).
    """

    is_64_bit: bool
    precision: str | None
    promotion: str


def block_settings() -> BlockSettings:
    """Returns the settings of this thread."""
    config: Any = jax.config  # it makes its attributes at run time
    return BlockSettings(config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion)


def call_with_settings(settings: Sequence[BlockSettings], function: Callable[[], T]) -> T:
    """Calls a function under the settings of the replicas.

    Args:
        settings: The settings of each replica. If they differ, those of the first one count, with arrays of 64 bits if
            any replica has them.
        function: The function.
    """
    first = settings[0]
    is_64_bit = any(one.is_64_bit for one in settings)
    if first._replace(is_64_bit=is_64_bit) == block_settings():
        return function()
    with (
        jax.enable_x64(is_64_bit),
        jax.default_matmul_precision(first.precision),
        jax.numpy_dtype_promotion(first.promotion),
    ):
        return function()
