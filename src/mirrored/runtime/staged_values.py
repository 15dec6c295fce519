"""Values that a run or function has assigned and not committed: their derivatives, and how to undo an assignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp


class HasDtype(Protocol):
    """Protocol of variables, as far as this module uses them."""

    @property
    def dtype(self) -> Any:
        """The dtype of one replica's copy of the variable."""
        ...


K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V", bound=HasDtype)


@jax.custom_jvp
def read_again(newest: jax.Array, before: jax.Array) -> Any:
    """Returns a variable's newly assigned value unchanged, and routes its gradients to the variable's old value.

    An assignment has no derivative: a gradient with respect to a value that is read after it flows to the variable, not
    to the inputs of the assigned value. A tape around a compiled function or run sees all of that as one operation with
    the variable as an operand, so the operand `before` carries the gradient.
    """
    return newest


@read_again.defjvp
def _read_again_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return primals[0], tangents[1]


def of_variable(variable: V, newest: jax.Array, before: Callable[[V], Any]) -> Any:
    """Returns a newly assigned value, with its gradients routed to the old value if the dtype is differentiable."""
    return read_again(newest, before(variable)) if jnp.issubdtype(variable.dtype, jnp.inexact) else newest


def restoring_item(items: dict[K, T], key: K, item: T | None) -> Callable[[], None]:
    """Returns a function that sets a dict item to the value `item`; if `item` is None, removes the dict item."""

    def restore() -> None:
        if item is None:
            items.pop(key, None)
        else:
            items[key] = item

    return restore
