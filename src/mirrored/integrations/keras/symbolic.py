"""Keras' symbolic calls, which ask a layer for shapes alone: variables of ours may be read in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored._jax.traces import current_trace, recording_parent
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.variable_store import FunctionFrame


def wrapped_compute_output_spec(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' `compute_output_spec`, in a frame of its own: what is read has a shape, what is assigned is forgotten."""

    @functools.wraps(compute)
    def compute_output_spec(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if ambient().frame is not None:
            return compute(function, *args, **kwargs)
        frame = FunctionFrame()

        @functools.wraps(function)
        def framed(*inner: Any, **named: Any) -> Any:
            frame.base_trace = recording_parent(current_trace())
            with within(frame=frame, listeners=(*ambient().listeners, frame)):
                return function(*inner, **named)

        return compute(framed, *args, **kwargs)

    return compute_output_spec
