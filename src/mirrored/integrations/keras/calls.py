"""Applies AutoGraph conversion to the `call` of user-defined layers inside a converted function."""

from __future__ import annotations

import contextvars
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import scope_of
from mirrored.patches import replace

keras = load()
Convert = Callable[[Callable[..., Any]], Callable[..., Any]]
_converting: contextvars.ContextVar[Convert | None] = contextvars.ContextVar("_converting", default=None)
_prepared: weakref.WeakSet[type] = weakref.WeakSet()  # Weak: a class defined in a function or a cell can be collected.


@contextmanager
def converted_by(convert: Convert) -> Iterator[None]:
    """Runs user-defined layers with the converted form of their `call` inside the block.

    Args:
        convert: Returns the converted form of a function, or the function itself if it is not to be converted.
    """
    token = _converting.set(convert)
    try:
        yield
    finally:
        _converting.reset(token)


def connect_calls() -> None:
    """Wraps `Layer.__call__` to prepare the class of a layer for conversion on its first call."""
    replace("keras", keras.layers.Layer, "__call__", _preparing(keras.layers.Layer.__call__))


def _preparing(call_layer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_layer)
    def preparing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _converting.get() is not None and type(self) not in _prepared:
            _prepare(type(self))
        if not self.built and "_mirrored_strategy" in vars(self):
            with scope_of(self):
                return call_layer(self, *args, **kwargs)
        return call_layer(self, *args, **kwargs)

    return preparing


def _prepare(layer_class: type) -> None:
    """Makes the `call` of a class and of its base classes convertible, except for Keras' own classes."""
    for one in layer_class.__mro__:
        call = vars(one).get("call")
        if one not in _prepared and callable(call) and not one.__module__.startswith("keras."):
            one.call = _dispatching(call)  # type: ignore[attr-defined]
        _prepared.add(one)


def _dispatching(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def dispatching(self: Any, *args: Any, **kwargs: Any) -> Any:
        convert = _converting.get()
        return (call if convert is None else convert(call))(self, *args, **kwargs)

    return dispatching
