"""`range` whose bounds are known only when the program runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from mirrored.tf._autograph.state import is_number
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._tensors import as_tensor


class TracedRange:
    """The numbers of a range with traced bounds: something to loop over in code that AutoGraph converts.

    Args:
        start: The first number.
        limit: The first that is too large.
        delta: From one number to the next.
        dtype: Of the numbers; None for that of the bounds.
        error: What is raised where it is used as a tensor, whose size would have to be known.
    """

    def __init__(self, start: Any, limit: Any, delta: Any, *, dtype: Any, error: Exception) -> None:
        given = [one if is_number(one) else as_tensor(one) for one in (start, limit, delta)]
        common = jnp.result_type(*given) if dtype is None else array_dtype(dtype)
        self._start, self._limit, self._delta = (jnp.asarray(one, common) for one in (start, limit, delta))
        self._error = error

    @property
    def count(self) -> jax.Array:
        """How many numbers there are."""
        span = (self._limit - self._start) / self._delta
        return jnp.maximum(jnp.ceil(span), 0).astype(jnp.int32)

    def at(self, place: Any) -> jax.Array:
        """The number in this place."""
        return self._start + jnp.asarray(place).astype(self._start.dtype) * self._delta

    def __iter__(self) -> Iterator[Any]:
        raise self._error

    def __jax_array__(self) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        """Only for what arrays have and ranges have not."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error
