"""Selects the AutoGraph conversion that is applied to the functions of Keras layers, if the program uses `mirrored.tf`.

It is active in `tf.function`, in `fit`, `evaluate` and `predict`, where Keras infers shapes, and in what JAX traces for
eager code: a traced function cannot have a Python condition on a tensor. A compiled function decides itself.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from mirrored._blocks import setting
from mirrored._jax.traces import current_trace, is_eval, trace_below_tapes
from mirrored.integrations.keras.scope_store import ScopeStore
from mirrored.runtime.ambient import ambient

Convert = Callable[[Callable[..., Any]], Callable[..., Any]]
_converting: contextvars.ContextVar[Convert | None] = contextvars.ContextVar("_converting", default=None)


def conversion_of_calls() -> Convert | None:
    """Returns the function with which AutoGraph converts functions; None if the program does not use `mirrored.tf`."""
    facade = sys.modules.get("mirrored.tf._function")
    return None if facade is None else cast(Convert, facade.convert)


def converting_calls() -> AbstractContextManager[None]:
    """Returns a context manager that applies AutoGraph to `call` methods, if the program uses `mirrored.tf`."""
    convert = conversion_of_calls()
    return nullcontext() if convert is None or _converting.get() is not None else converted_by(convert)


def converted_by(convert: Convert) -> AbstractContextManager[None]:
    """Context manager that applies the AutoGraph conversion `convert` to `call` methods of user-defined Keras layers.

    Args:
        convert: Returns the converted form of a function, or the function itself if it is not to be converted.
    """
    return setting(_converting, convert)


def active_conversion() -> Convert | None:
    """Returns the AutoGraph conversion to apply to the `call` of a layer here; None if it is to run as Python."""
    convert, store = _converting.get(), ambient().store
    if store is not None and store.captures and not isinstance(store.outermost(), ScopeStore):
        return convert  # the choice of the compiled function
    if convert is not None or is_eval(trace_below_tapes(current_trace())):
        return convert
    return conversion_of_calls()
