"""Calling user functions on elements: TensorFlow's way of passing tuples, and errors that name the element."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

from mirrored.data.elements import Element, handed_out, own_element


def call(function: Callable[..., Any], element: Element, called: str, index: int) -> Any:
    """`function(element)`, or `function(*element)` for a tuple, on the host.

    An exception keeps its type and traceback and gets a note that names the element.
    """
    handed_out(element)
    start = time.perf_counter()
    try:
        with naming_element(called, index), _on_host():
            if type(element) is tuple:
                return function(*element)
            return function(element)
    finally:
        _clock.seconds += time.perf_counter() - start


class _Clock(threading.local):
    """Time spent in user functions by this thread."""

    seconds = 0.0


_clock = _Clock()


def function_seconds() -> float:
    """How long user functions of pipelines have run in this thread."""
    return _clock.seconds


def transformed(function: Callable[..., Any], element: Element, called: str, index: int) -> Element:
    """`call`, with the result as an element."""
    result = call(function, element, called, index)
    with naming_element(called, index):
        return own_element(result, called)


class naming_element:
    """Adds "at element i" to an exception that passes."""

    __slots__ = ("_called", "_index")

    def __init__(self, called: str, index: int) -> None:
        self._called, self._index = called, index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StopIteration):
            # It would end the iteration quietly.
            raise RuntimeError(f"{self._called}: StopIteration at element {self._index}") from error
        if isinstance(error, Exception):
            error.add_note(f"{self._called}: at element {self._index}")
            if isinstance(error, ValueError) and "read-only" in str(error):
                error.add_note("the arrays of a dataset are shared between epochs: write to a copy (x = x.copy())")


def _on_host() -> Any:
    """JAX operations in user functions of a pipeline run on the CPU, not on the accelerator that trains."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_device(jax.local_devices(backend="cpu")[0])
