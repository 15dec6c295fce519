"""Keras' symbolic calls, which ask a layer for shapes alone: variables of ours may be read in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored._jax.traces import current_trace, recording_parent
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.variable_store import FunctionStore


def wrapped_compute_output_spec(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' `compute_output_spec`, in a frame of its own: what is read has a shape, what is assigned is forgotten."""

    @functools.wraps(compute)
    def compute_output_spec(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if ambient().store is not None:
            return compute(function, *args, **kwargs)
        store = FunctionStore()

        @functools.wraps(function)
        def framed(*inner: Any, **named: Any) -> Any:
            store.base_trace = recording_parent(current_trace())
            with within(store=store, listeners=(*ambient().listeners, store)):
                return function(*inner, **named)

        return compute(framed, *args, **kwargs)

    return compute_output_spec
