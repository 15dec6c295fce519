"""TensorFlow's private functions around a tape (`backprop.gradients_function` and others), by a public tape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import mirrored.tf as tf

Function = Callable[..., Any]


def val_and_grad_function(f: Function, params: Sequence[int | str] | None = None) -> Function:
    """A function that returns `f`'s result and its gradients with respect to its positional arguments.

    Args:
        f: The function.
        params: Positions or names of the arguments; None means all.
    """

    def run(*args: Any, dy: Any = None, **kwargs: Any) -> Any:
        chosen = list(range(len(args))) if params is None else [_position(f, one) for one in params]
        if params is not None and not chosen:
            raise ValueError("no arguments to differentiate")
        values = [_tensor(value) if index in chosen else value for index, value in enumerate(args)]
        with tf.GradientTape() as tape:
            for index in chosen:
                tape.watch(values[index])
            result = f(*values, **kwargs)
        _require_result(result)
        return result, tape.gradient(result, [values[index] for index in chosen], output_gradients=dy)

    return run


def _position(f: Function, parameter: int | str) -> int:
    return list(inspect.signature(f).parameters).index(parameter) if isinstance(parameter, str) else parameter


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.Variable) else tf.convert_to_tensor(value)


def _require_result(result: object) -> None:
    if result is None:
        raise ValueError("Cannot differentiate a function that returns None")


def gradients_function(f: Function, params: Sequence[int | str] | None = None) -> Function:
    """A function that returns the gradients of `f` with respect to its positional arguments.

    Args:
        f: The function.
        params: Positions or names of the arguments; None means all.
    """
    both = val_and_grad_function(f, params)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


def implicit_val_and_grad(f: Function) -> Function:
    """A function that returns `f`'s result, and the gradient with respect to every variable that `f` reads.

    Args:
        f: The function.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        with tf.GradientTape() as tape:
            result = f(*args, **kwargs)
        _require_result(result)
        variables = tape.watched_variables()
        if not variables:
            raise ValueError("No trainable variables were accessed while the function was being computed.")
        return result, list(zip(tape.gradient(result, variables), variables, strict=True))

    return run


def implicit_grad(f: Function) -> Function:
    """A function that returns pairs of gradients and the variables that `f` reads.

    Args:
        f: The function.
    """
    both = implicit_val_and_grad(f)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


def without_missing(grad_fn: Function) -> Function:
    """A function whose pairs of gradients and variables lack those without a gradient.

    Args:
        grad_fn: Returns all pairs.
    """
    return lambda *args, **kwargs: [pair for pair in grad_fn(*args, **kwargs) if pair[0] is not None]


def make_vjp(f: Function, params: Sequence[int | str] | None = None, persistent: bool = True) -> Function:
    """A function that returns `f`'s result and its vector-Jacobian product.

    Args:
        f: The function.
        params: Ignored: all arguments are differentiated.
        persistent: Whether the product can be computed repeatedly.
    """

    def run(*args: Any) -> Any:
        values = [_tensor(value) for value in args]
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch(values)
            result = f(*values)
        return result, lambda dy=None: tape.gradient(result, values, output_gradients=dy)

    return run
