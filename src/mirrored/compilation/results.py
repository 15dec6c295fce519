"""Refuses results of compiled functions that would hold tracers, or be exhausted after the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mirrored._jax.traces import Tracer
from mirrored.compilation.captured_objects import nested
from mirrored.compilation.frozen_state import is_iterator
from mirrored.errors import ArgumentError


def refuse_result(value: object, called: str) -> None:
    """Raises an error if a compiled function returns an iterator, or an object that holds a traced array.

    Every call would return the same object, whose items and attributes are not results of the program.

    Args:
        value: A leaf of the result.
        called: The name of the function, for the message.

    Raises:
        ArgumentError: The object is an iterator, or holds an array that the function computes.
    """
    if is_iterator(value):
        raise ArgumentError(
            called,
            found=f"the function returns an object of type {type(value).__name__}, a Python iterator",
            rule="a compiled function returns arrays in containers; every call would return the same iterator",
            remedy="return a list or a tuple: list(...)",
        )
    refuse_holder(value, called, lambda part: isinstance(part, Tracer))


def refuse_holder(value: object, called: str, is_computed: Callable[[object], bool]) -> None:
    """Raises an error if a leaf of a result is an object that holds a traced array, such as a subclass of dict."""
    kind = type(value).__name__
    held = next((name for name, part in nested([(kind, value)]) if part is not value and is_computed(part)), None)
    if held is None:
        return
    plain = "dict(...)" if isinstance(value, Mapping) else "list(...)" if isinstance(value, Sequence) else "a dict"
    raise ArgumentError(
        called,
        found=f"the function returns an object of type {kind}, which holds an array that it computes: {held}",
        rule="results are arrays in lists, tuples, dicts and classes that are registered with JAX; a subclass of list "
        "or dict is not registered",
        remedy=f"return {plain}, or register the class: jax.tree_util.register_dataclass({kind}) for a dataclass",
    )
