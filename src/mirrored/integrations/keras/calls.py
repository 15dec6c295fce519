"""Applies AutoGraph to the `call` of user-defined layers where JAX traces it, if the program uses `mirrored.tf`.

That is in `tf.function`, in `fit`, `evaluate` and `predict`, and where Keras infers shapes. A layer that is called
eagerly runs as Python. But Keras may trace what the layer calls: `keras.layers.RNN` scans its cell, for example.
TensorFlow runs such a loop eagerly.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import is_made_in_scope, scope_of
from mirrored.integrations.keras.conversion import active_conversion, conversion_of_calls
from mirrored.integrations.keras.loops import step_builds
from mirrored.integrations.keras.private import in_stateless_scope
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Layer

keras = load()
# Weak: a class defined in a function or a cell can be collected, and its methods refer to it.
_prepared: weakref.WeakKeyDictionary[type, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # with the `call` of each
_made: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()  # the methods that convert


def prepare(layer_class: type) -> None:
    """Makes the `call` methods of a user-defined layer class and its base classes convertible by AutoGraph.

    That includes a `call` with which the program has replaced the method of the class since.

    Has no effect outside of `converted_by` if the program does not use `mirrored.tf`.
    """
    if not _is_prepared(layer_class) and (active_conversion() or conversion_of_calls()) is not None:
        _prepare(layer_class)


def _is_prepared(layer_class: Any) -> bool:
    known, call = _prepared.get(layer_class), layer_class.call
    return known is not None and (known() is call or not isinstance(call, types.FunctionType))


def convertible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a layer's bound `call` in the form that AutoGraph can convert; other functions unchanged.

    Keras takes the method from the layer before it infers shapes, and may trace it several times. So the method can be
    the original one, also if the class has been prepared since.
    """
    if not isinstance(function, types.MethodType) or function.__name__ != "call":
        return function
    layer_class: Any = type(function.__self__)  # `call` is an attribute that user classes define
    call = getattr(layer_class, "call", None)
    original = getattr(call, "__wrapped__", None) if layer_class in _prepared else None
    if function.__func__ is not call and function.__func__ is not original:
        return function
    prepare(layer_class)
    return types.MethodType(layer_class.call, function.__self__)


def _prepare(layer_class: type) -> None:
    """Replaces the `call` methods that users define in a class and its bases by functions that AutoGraph converts."""
    for one in layer_class.__mro__:
        call = vars(one).get("call")
        if isinstance(call, types.FunctionType) and call not in _made and not one.__module__.startswith("keras."):
            one.call = _dispatching(call)  # type: ignore[attr-defined]
    call = getattr(layer_class, "call", None)
    _prepared[layer_class] = weakref.ref(call if isinstance(call, types.FunctionType) else layer_class)


def _dispatching(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def dispatching(self: Layer, *args: Any, **kwargs: Any) -> Any:
        convert = active_conversion()
        return (call if convert is None else convert(call))(self, *args, **kwargs)

    _made.add(dispatching)
    return dispatching


def connect_calls() -> None:
    """Patches `Layer.__call__`, so that AutoGraph can convert the `call` method of user-defined layers."""
    replace("keras", keras.layers.Layer, "__call__", _preparing(keras.layers.Layer.__call__))


def _preparing(call_layer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_layer)
    def preparing(self: Layer, *args: Any, **kwargs: Any) -> Any:
        prepare(type(self))
        if self.built:
            return call_layer(self, *args, **kwargs)
        if in_stateless_scope() and step_builds(self):
            return None  # `predict` calls an unbuilt model to build it, and ignores the result
        with scope_of(self) if is_made_in_scope(self) else nullcontext():
            return call_layer(self, *args, **kwargs)

    return preparing
