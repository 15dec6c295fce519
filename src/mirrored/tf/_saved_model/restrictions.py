"""Describes functions with unknown sizes that `tf.saved_model.save` saves only for known sizes, or cannot save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from mirrored._typing import PyTree
from mirrored.errors import ArgumentError
from mirrored.tf._ops.open_sizes import Open, Traced
from mirrored.tf._saved_model.functions import SAVED, Signature

_MOST_SHAPES = 5
_REMEDY = (
    "make tensors from the argument instead of its size (tf.shape(x)[0], int(x.shape[0]), a loop over rows): "
    "tf.zeros_like(x[:, :1]), tf.reduce_sum(tf.ones_like(x[:, 0])) for the number of rows, tf.reduce_mean, tf.map_fn, "
    "or tf.reshape with -1"
)


def restriction(signature: Signature, programs: Sequence[Traced[Any]]) -> str | None:
    """Returns the warning about programs that take only the shapes of earlier calls, without the function's name.

    Args:
        signature: The function and its arguments.
        programs: The programs that it was traced to. If they take all sizes, there is no warning.
    """
    fixed = [one for one in programs if one.refused is not None]
    if not fixed:
        return None
    shapes = [_shapes(signature, one.inputs) for one in fixed]
    more = f" and {len(shapes) - _MOST_SHAPES} more" if len(shapes) > _MOST_SHAPES else ""
    return (
        f"is saved only for the shapes of its earlier calls ({'; '.join(shapes[:_MOST_SHAPES])}{more})\n"
        f"  reason: the program needs the unknown sizes of {_unknown(signature)}: {_first_line(fixed[0].refused)}\n"
        f"  remedy: to save it for all sizes, {_REMEDY}"
    )


def not_open_error(name: str, signature: Signature, reason: Exception) -> ArgumentError:
    """Creates the error for a function that needs to know unknown sizes, and was called for none.

    Args:
        name: The name of the function.
        signature: Its arguments.
        reason: The error of tracing it for unknown sizes.
    """
    return ArgumentError(
        SAVED,
        found=f"{name} cannot be traced for the unknown sizes of {_unknown(signature)}: {_first_line(reason)}",
        rule="a program that needs an unknown size is saved for the shapes of earlier calls, and there was none",
        remedy=f"{_REMEDY}; or call the function before it is saved, or pass known sizes in its input_signature",
    )


def _unknown(signature: Signature) -> str:
    """Lists the arguments that have unknown sizes, with their shapes."""
    return ", ".join(
        f"{name} {'of any shape' if one.shape is None else _shown(one.shape)}"
        for name, value in zip(signature.names, signature.inputs, strict=False)
        for one in jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, Open))
        if isinstance(one, Open) and (one.shape is None or None in one.shape)
    )


def _shapes(signature: Signature, inputs: Sequence[PyTree]) -> str:
    """Lists the arguments with the shapes for which a program was traced; None stands for the size of a batch."""
    return ", ".join(
        f"{name} {_shown(one.shape)}"
        for name, value in zip(signature.names, inputs, strict=False)
        for one in jax.tree.leaves(value)
        if isinstance(one, jax.ShapeDtypeStruct)
    )


def _shown(shape: Sequence[Any]) -> str:
    return str([size if isinstance(size, int) else None for size in shape])


def _first_line(error: Exception | None) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
