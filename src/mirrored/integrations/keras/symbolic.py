"""Lets layers read `mirrored` variables in Keras' symbolic calls, which infer shapes only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored._jax.traces import current_trace, recording_parent
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.variable_store import FunctionStore


def wrapped_compute_output_spec(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' `compute_output_spec` to run in a separate variable store.

    In that store, reads return tracers that carry the shape, and assignments are discarded.
    """

    @functools.wraps(compute)
    def compute_output_spec(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if ambient().store is not None:
            return compute(function, *args, **kwargs)
        store = FunctionStore()

        @functools.wraps(function)
        def with_store(*inner: Any, **named: Any) -> Any:
            store.base_trace = recording_parent(current_trace())
            with within(store=store, listeners=(*ambient().listeners, store)):
                return function(*inner, **named)

        return compute(with_store, *args, **kwargs)

    return compute_output_spec
