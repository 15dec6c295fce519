"""Lets Keras add its context to JAX's errors about traced values, which cannot be created from a message.

To add the layer and its arguments to an error, Keras calls the error's class with a longer message. JAX's classes take
a tracer in place of a message: called with a string, they raise an `AttributeError`, which hides the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from mirrored.integrations.keras.private import tracebacks
from mirrored.patches import replace


def connect_tracer_errors() -> None:
    """Patches the function of Keras that adds the arguments of a layer's call to the errors of the call."""
    name = "inject_argument_info_in_traceback"
    replace("keras", tracebacks, name, _for_calls(getattr(tracebacks, name)))


def _for_calls(inject: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inject)
    def injecting(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return inject(with_messages(fn), *args, **kwargs)

    return injecting


def with_messages(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that the classes of the JAX errors that it raises can be called with a message."""

    @functools.wraps(function)
    def raising(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except jax.errors.JAXTypeError as raised:
            error: Any = raised  # type checkers allow no assignment to `__class__`
            error.__class__ = _with_message(error.__class__)
            raise

    return raising


@functools.cache
def _with_message(error_class: type[Exception]) -> type[Exception]:
    """Returns a subclass of an error class, with the same name, that is created from a message."""
    if error_class.__init__ is Exception.__init__:
        return error_class
    names = {name: getattr(error_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(error_class.__name__, (error_class,), {**names, "__init__": Exception.__init__})
