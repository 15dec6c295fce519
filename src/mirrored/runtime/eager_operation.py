"""Notes the trace of a function that a loop or conditional of a framework runs for eager code.

Such a function may read variables as constants: its trace serves one call. That is true of the branches and loop bodies
in the function, too, but not of other functions whose traces JAX keeps, such as those of `jax.jit`.
"""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager
from typing import Any, Final

from mirrored._blocks import setting
from mirrored._jax.traces import current_trace

_trace: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("mirrored.operation_trace", default=None)


def in_eager_operation() -> bool:
    """Returns whether a function of a loop, conditional or `keras.remat` of eager code runs, which reads weights."""
    trace = _trace.get()
    return trace is not None and trace is current_trace()


def within_eager_operation() -> AbstractContextManager[None]:
    """Context manager that marks the current trace as that of a function of a loop or conditional of eager code."""
    return setting(_trace, current_trace())
