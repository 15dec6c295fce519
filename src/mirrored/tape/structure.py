"""Flattens the sources and targets of gradients, which are structures of arrays and variables."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, SequenceKey

from mirrored.errors import ArgumentError, ArgumentTypeError


class UnconnectedGradients(enum.Enum):
    """The gradient of a target with respect to a source on which it does not depend: None or zeros.

    Example:
        >>> UnconnectedGradients("zero") is UnconnectedGradients.ZERO
        True

    TensorFlow: `tf.UnconnectedGradients`. As in TensorFlow, the strings `"none"` and `"zero"` are also accepted.
    """

    NONE = "none"
    ZERO = "zero"

    @classmethod
    def of(cls, value: UnconnectedGradients | str) -> UnconnectedGradients:
        """Converts a member or its value to a member.

        Raises:
            ArgumentError: `value` is not valid.
        """
        try:
            return cls(value)
        except ValueError:
            raise ArgumentError(
                "GradientTape.gradient",
                found=f"Unknown value for unconnected_gradients: {value!r}",
                rule="it is UnconnectedGradients.NONE (or 'none') or UnconnectedGradients.ZERO (or 'zero')",
                remedy="omit it to get None for sources on which the target does not depend",
            ) from None


def is_variable(value: Any) -> bool:
    """Returns whether `value` is a variable: an object with `read_value` and `trainable`."""
    return hasattr(value, "trainable") and hasattr(value, "read_value")


def is_array(value: Any) -> bool:
    """Returns whether `value` is an array that a tape can track."""
    return isinstance(value, jax.Array)


def flatten_sources(sources: Any, called: str) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Flattens a structure of sources.

    In a registered class (an Equinox module, an optax state), the gradient of a leaf that is not an array is None. In
    lists, tuples and dicts, such a leaf is an error.

    Returns:
        The arrays and variables, and a function that unflattens results to the structure.

    Raises:
        ArgumentTypeError: A leaf of a list, tuple or dict is neither an array nor a variable.
    """
    leaves: list[Any]
    treedef: Any
    leaves, treedef = jax.tree_util.tree_flatten_with_path(sources, is_leaf=lambda x: x is None or is_variable(x))
    positions = []
    for position, (path, leaf) in enumerate(leaves):
        if is_variable(leaf) or is_array(leaf):
            positions.append(position)
        elif all(isinstance(step, (SequenceKey, DictKey)) for step in path):
            raise _not_a_source(leaf, path, called)

    def rebuild(results: Sequence[Any]) -> Any:
        full: list[Any] = [None] * len(leaves)
        for position, result in zip(positions, results, strict=True):
            full[position] = result
        return treedef.unflatten(full)

    return [leaves[position][1] for position in positions], rebuild


def flatten_targets(target: Any, called: str) -> list[Any]:
    """Flattens a structure of targets to its arrays and variables.

    Raises:
        ArgumentTypeError: A target is neither an array nor a variable.
    """
    if target is None:
        raise ArgumentTypeError(
            called,
            found="the target is None",
            rule="a target is an array, a variable or a structure of them, computed in the tape's block",
            remedy="check that the function that computes the target also returns it",
        )
    leaves = jax.tree.leaves(target, is_leaf=lambda x: x is None or is_variable(x))
    for leaf in leaves:
        if not (is_variable(leaf) or is_array(leaf)):
            raise ArgumentTypeError(
                called,
                found=f"a target is {_shown(leaf)}",
                rule="targets are arrays and variables, or structures of them",
                remedy="compute the target with jax.numpy in the tape's block",
            )
    return leaves


def zeros_like_source(source: Any) -> jax.Array:
    """Returns zeros of the shape and dtype of a source."""
    return jnp.zeros(source.shape, source.dtype)


def _not_a_source(leaf: Any, path: Any, called: str) -> ArgumentTypeError:
    where = jax.tree_util.keystr(path)
    return ArgumentTypeError(
        called,
        found=f"the source{' at ' + where if where else ''} is {_shown(leaf)}",
        rule="sources are arrays and variables, or structures of them",
        remedy="pass the array that the tape watches, or the variable; omit values that have no gradient",
    )


def _shown(leaf: Any) -> str:
    return "None" if leaf is None else f"{leaf!r} of type {type(leaf).__name__!r}"
