"""`unrecorded`: suspends all gradient tapes for a block."""

from __future__ import annotations

from contextlib import ExitStack

from mirrored._jax.traces import current_trace
from mirrored.tape.trace import TapeTrace


def unrecorded() -> ExitStack:
    """Returns a context manager that suspends all gradient tapes, for instance while variables are updated.

    Example:
        >>> import jax.numpy as jnp
        >>> from mirrored.tape import GradientTape, unrecorded
        >>> x = jnp.array(3.0)
        >>> with GradientTape() as tape:
        ...     tape.watch(x)
        ...     with unrecorded():
        ...         y = x * x
        >>> print(tape.gradient(y, x))
        None
    """
    stack = ExitStack()
    while isinstance(trace := current_trace(), TapeTrace):
        stack.enter_context(trace.under_parent())
    return stack
