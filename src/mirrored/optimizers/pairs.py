"""Checks and pairs up gradients and variables before an optimizer update."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import PyTree
from mirrored.errors import ArgumentError, StructureError, VariableError
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.values.sparse_rows import SparseRows
from mirrored.variables import Variable

Pair = tuple[Any, Variable]


def as_pairs(grads_and_vars: Iterable[Any], called: str) -> list[Pair]:
    """Returns gradients and variables as a list of pairs; splits a pair of trees into one pair per variable.

    Raises:
        StructureError: An element is not such a pair.
        ArgumentError: A variable occurs twice.
        VariableError: An optimizer cannot update one of the variables.
    """
    pairs: list[Pair] = []
    for position, pair in enumerate(grads_and_vars):
        if isinstance(pair, tuple | list) and len(pair) == 2 and not isinstance(pair[1], Variable):
            found = tree_pairs(pair[0], pair[1], called)
            if found:
                pairs += found
                continue
        if (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and _has_arrays(pair[1])
            and not isinstance(pair[0], Variable)
        ):
            raise StructureError(
                called,
                found=f"{_kind(pair)} at position {position}: arrays in place of variables",
                rule="an optimizer updates variables in place; arrays cannot be updated",
                remedy="convert the parameters first, params = mirrored.mirror(params) in strategy.scope(), "
                "and differentiate with respect to the resulting variables",
            )
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Variable):
            raise StructureError(
                called,
                found=f"{_kind(pair)} at position {position}",
                rule="each element must be a pair (gradient, Variable)",
                remedy=f"write {called}(zip(gradients, variables))",
            )
        pairs.append((_dense(*pair), pair[1]))
    _check_variables([variable for _, variable in pairs], called)
    return pairs


def _dense(gradient: object, variable: Variable) -> object:
    """Returns sparse rows (`tf.IndexedSlices`) as an array of the variable's shape; other gradients unchanged."""
    if not isinstance(gradient, SparseRows):
        return gradient
    known = gradient.dense_shape
    if isinstance(known, tuple) and known != variable.component_shape:
        return gradient  # refused later, with the shapes
    return SparseRows(gradient.values, gradient.indices, variable.component_shape).to_dense()


def tree_pairs(gradients: PyTree, variables: PyTree, called: str) -> list[Pair]:
    """Pairs the leaves of a tree of gradients with the variables of a model that has the same structure.

    A variable that is not trainable and has no gradient is omitted. `gradients` of None means that no variable has a
    gradient.

    Raises:
        StructureError: The trees have different structures.
    """
    leaves = jax.tree.leaves(variables, is_leaf=_is_leaf)
    if not any(isinstance(leaf, Variable) for leaf in leaves):
        return []
    given = [None] * len(leaves) if gradients is None else jax.tree.leaves(gradients, is_leaf=_is_leaf)
    if len(given) != len(leaves):
        raise StructureError(
            called,
            found=f"a tree of {len(given)} gradients was passed for a tree of {len(leaves)} variables",
            rule="the tree of gradients must have the structure of the tree of variables",
            remedy="pass what tape.gradient(loss, variables) returned, with the same variables",
        )
    pairs = zip(given, leaves, strict=True)
    return [
        (gradient, variable)
        for gradient, variable in pairs
        if isinstance(variable, Variable) and (variable.trainable or gradient is not None)
    ]


def as_variables(variables: PyTree) -> list[Any]:
    """Returns the trainable variables in a list or a tree (such as a model), in order.

    Elements of a list are returned unchanged.
    """
    found: list[Any] = []
    for one in [variables] if isinstance(variables, Variable) or not isinstance(variables, list | tuple) else variables:
        tree = [] if isinstance(one, Variable) else tree_pairs(None, one, "as_variables")
        found += [variable for _, variable in tree] or [one]
    return found


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, Variable)


def _kind(pair: object) -> str:
    if isinstance(pair, tuple | list):
        return f"a {type(pair).__name__} of {', '.join(type(part).__name__ for part in pair) or 'nothing'}"
    return f"a {type(pair).__name__}"


def _check_variables(variables: Sequence[Variable], called: str) -> None:
    seen: set[int] = set()
    for variable in variables:
        if id(variable) in seen:
            raise ArgumentError(
                called,
                found=f"variable {variable.name!r} was passed twice",
                rule="a call can update each variable only once",
                remedy="sum its gradients first: mirrored.aggregate_gradients([gradients_1, gradients_2])",
            )
        seen.add(id(variable))
        if variable.per_replica or not jnp.issubdtype(variable.dtype, jnp.inexact):
            kind = "sync-on-read" if variable.per_replica else str(variable.dtype)
            raise VariableError(
                called,
                found=f"variable {variable.name!r} is {kind}",
                rule="an optimizer can update only mirrored variables of floating-point or complex numbers",
                remedy="exclude it from the trained variables (trainable=False)",
            )


def with_gradients(pairs: Sequence[Pair], called: str) -> tuple[list[Pair], tuple[str, ...]]:
    """Returns the (gradient, variable) pairs that have a gradient, and the names of the variables without one.

    Raises:
        ArgumentError: No pair has a gradient.
    """
    present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    absent = tuple(variable.name for gradient, variable in pairs if gradient is None)
    if not present:
        raise no_gradients(absent, called)
    return present, absent


def no_gradients(absent: Sequence[str], called: str) -> ArgumentError:
    """Returns the error for an optimizer update in which no variable has a gradient."""
    return ArgumentError(
        called,
        found=f"No gradients provided for any variable: {', '.join(absent) or 'the list is empty'}",
        rule="an update needs a gradient for at least one variable",
        remedy="compute the loss from these variables under the tape; call tape.watch on those that are not trainable",
    )


def warn_of_missing(names: Sequence[str], called: str, *, stacklevel: int) -> None:
    """Warns that an optimizer update has no gradients for some variables."""
    warnings.warn(
        f"{called}: no gradient for {', '.join(names)}: the loss does not depend on them; they are not updated",
        UserWarning,
        stacklevel=stacklevel + 1,
    )


def check_gradients(pairs: Sequence[Pair], called: str, *, in_replica: bool) -> None:
    """Checks that every gradient has its variable's shape and a compatible dtype, and reports all mismatches at once.

    Raises:
        StructureError: A gradient has another shape or dtype kind. The message names every such variable.
    """
    wrong = [problem for gradient, variable in pairs if (problem := _problem(gradient, variable, in_replica))]
    if wrong:
        raise StructureError(
            called,
            found="; ".join(wrong),
            rule="a gradient has its variable's shape and kind of dtype"
            + (", and inside strategy.run it is this replica's own array" if in_replica else ""),
            remedy="pass the gradients in the order of the variables: zip(tape.gradient(loss, variables), variables)",
        )


def _problem(gradient: object, variable: Variable, in_replica: bool) -> str:
    """Describes the mismatch of one gradient, or returns the empty string."""
    wanted = f"{variable.dtype}{list(variable.component_shape)}"
    if isinstance(gradient, PerReplica):
        if in_replica:
            return f"{variable.name}: a PerReplica value"
        fits = gradient.component_shape == variable.component_shape
        return "" if fits else f"{variable.name}: components of shape {gradient.component_shape} for {wanted}"
    value = gradient.value if isinstance(gradient, Mirrored) else gradient
    if not isinstance(value, jax.Array | np.ndarray | np.generic | float | int | Variable):
        return f"{variable.name}: a {type(value).__name__} for {wanted}"
    shape = tuple(value.shape) if hasattr(value, "shape") else ()
    dtype = value.dtype if hasattr(value, "dtype") else jnp.result_type(float)
    if shape != variable.component_shape:
        return f"{variable.name}: {dtype}{list(shape)} for {wanted}"
    complex_for_real = jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(
        variable.dtype, jnp.complexfloating
    )
    if complex_for_real or not jnp.issubdtype(dtype, jnp.inexact):
        return f"{variable.name}: {dtype}{list(shape)} for {wanted}"
    return ""


def _has_arrays(tree: PyTree) -> bool:
    """Whether a tree contains arrays, that is, parameters that were not given to `mirrored.mirror`."""
    return any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(tree))
