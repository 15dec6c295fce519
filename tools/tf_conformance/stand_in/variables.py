"""Version 1's constructors of variables, as far as they mean something in eager code."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Iterator
from typing import Any, Final

import mirrored.tf as tf

_ARGUMENTS: Final = ("trainable", "name", "dtype", "constraint", "shape", "synchronization", "aggregation")


class _VariableType(type):
    """The class of all variables, for `isinstance`; creates `tf.Variable`s."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tf.Variable)

    def __call__(cls, initial_value: Any = None, *args: Any, **kwargs: Any) -> Any:
        return variable(initial_value, *args, **kwargs)


class VariableV1(metaclass=_VariableType):
    """Version 1's variable."""


def variable(initial_value: Any = None, trainable: bool | None = None, **kwargs: Any) -> Any:
    """Version 1's `variable_scope.variable`.

    Args:
        initial_value: The initial value.
        trainable: Whether tapes watch it.
        **kwargs: `tf.Variable`'s arguments; version 1's other ones are ignored.
    """
    if kwargs.get("variable_def") is not None:
        raise unittest.SkipTest("not run here: graph mode")
    given = {**kwargs, "trainable": trainable}
    return tf.Variable(initial_value, **{k: v for k, v in given.items() if k in _ARGUMENTS and v is not None})


def get_variable(
    name: str, shape: Any = None, dtype: Any = None, initializer: Any = None, regularizer: Any = None, **kwargs: Any
) -> Any:
    """Version 1's `get_variable` without reuse.

    Args:
        name: The name.
        shape: The shape, for an initializer that is a function.
        dtype: The dtype.
        initializer: A value, or a function of shape and dtype.
        regularizer: Ignored.
        **kwargs: `tf.Variable`'s arguments; version 1's other ones are ignored.
    """
    chosen = initializer if initializer is not None else tf.keras.initializers.GlorotUniform() if shape else tf.zeros
    chosen = chosen() if isinstance(chosen, type) else chosen
    initial = _initial_value(chosen, shape, dtype) if callable(chosen) else chosen
    return variable(initial, name=name, dtype=dtype, **kwargs)


def _initial_value(initializer: Callable[..., Any], shape: Any, dtype: Any) -> Callable[[], Any]:
    def compute() -> Any:
        return initializer() if shape is None else initializer(shape, dtype=dtype or tf.float32)

    return compute


@contextlib.contextmanager
def variable_scope(*args: object, **kwargs: object) -> Iterator[None]:
    """Version 1's scope of names and reuse; has no effect."""
    yield
