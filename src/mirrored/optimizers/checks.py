"""Checks of gradients (missing ones, shapes, dtypes, shared iterators) and of an optimizer's slots."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored.analysis.dataflow import reached_results
from mirrored.errors import ArgumentError, ContextError, StructureError
from mirrored.runtime.ambient import ambient
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.variables import Variable

if TYPE_CHECKING:
    from mirrored.optimizers.slot_layout import SlotLeaf

Pair = tuple[Any, Variable]


def with_gradients(pairs: Sequence[Pair], called: str) -> tuple[list[Pair], tuple[str, ...]]:
    """Returns the (gradient, variable) pairs that have a gradient, and the names of the variables without one.

    Raises:
        ArgumentError: No pair has a gradient.
    """
    present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    absent = tuple(variable.name for gradient, variable in pairs if gradient is None)
    if not present:
        raise no_gradients_error(absent, called)
    return present, absent


def no_gradients_error(absent: Sequence[str], called: str) -> ArgumentError:
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
        f"{called}: no gradient for {', '.join(names)}: the loss does not depend on these variables, "
        "and they are not updated\n"
        "  remedy: compute the loss from them in the tape's block, or omit them from the update",
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
            rule="a gradient must have its variable's shape and a floating-point dtype (complex for complex ones only)"
            + ("; inside strategy.run it must be this replica's own array" if in_replica else ""),
            remedy="pass the gradients in the order of the variables: zip(tape.gradient(loss, variables), variables)",
        )


def _problem(gradient: object, variable: Variable, in_replica: bool) -> str:
    """Describes how a gradient mismatches its variable; returns an empty string if it matches."""
    wanted = f"{variable.dtype}{list(variable.component_shape)}"
    if isinstance(gradient, PerReplica):
        if in_replica:
            return f"{variable.name}: a PerReplica value"
        if gradient.component_shape != variable.component_shape:
            return f"{variable.name}: components of shape {gradient.component_shape} for {wanted}"
        components = [gradient.first()] if gradient.is_stacked else gradient.values
        wrong = [str(dtype) for dtype in map(_dtype_of, components) if not _is_gradient_of(variable, dtype)]
        return f"{variable.name}: components of dtype {wrong[0]} for {wanted}" if wrong else ""
    value = gradient.value if isinstance(gradient, Mirrored) else gradient
    if not isinstance(value, jax.Array | np.ndarray | np.generic | float | int | Variable):
        return f"{variable.name}: a {type(value).__name__} for {wanted}"
    # A variable may have a declared shape with unknown dimensions, and its value a definite one.
    shape = value.component_shape if isinstance(value, Variable) else tuple(getattr(value, "shape", ()))
    dtype = _dtype_of(value)
    fits = shape == variable.component_shape and _is_gradient_of(variable, dtype)
    return "" if fits else f"{variable.name}: {dtype}{list(shape)} for {wanted}"


def _dtype_of(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else jnp.result_type(float)


def _is_gradient_of(variable: Variable, dtype: Any) -> bool:
    is_complex = jnp.issubdtype(variable.dtype, jnp.complexfloating)
    return bool(jnp.issubdtype(dtype, jnp.inexact if is_complex else jnp.floating))


def check_iterators(iterators: Sequence[Any], called: str) -> None:
    """Raises an error if replicas share an iterator of (gradient, variable) pairs, which the first replica exhausts."""
    shared = [one for one in iterators if one is not None]
    if len(set(map(id, shared))) < len(shared):
        raise ArgumentError(
            called,
            found=f"the replicas passed the same {type(shared[0]).__name__} object, which the first one has exhausted",
            rule="every replica must pass its own pairs of a gradient and a variable",
            remedy="create the pairs in the replica function: zip(gradients, variables)",
        )


def check_strategy_of_state(state: Sequence[Variable]) -> None:
    """Raises an error if the counter or slots of an optimizer belong to another strategy than the current one.

    Without the check, JAX would refuse the arrays of different devices in an eager update.
    """
    strategies = ambient().strategies
    if not strategies:
        return
    for variable in state:
        if variable.device_assignment is not None and variable.strategy is not strategies[-1]:
            raise ContextError(
                "Optimizer.apply_gradients",
                found=f"the optimizer's variable {variable.name!r} belongs to {variable.strategy!r}, but "
                f"{strategies[-1]!r} is current",
                rule="an optimizer that has state in one strategy can update only variables of that strategy",
                remedy="create one optimizer for each strategy, in its scope or outside of any scope",
            )


def check_shapes(leaves: Sequence[SlotLeaf], found: Sequence[tuple[int, ...]]) -> None:
    """Raises an error if a variable's shape has changed, because its slot variables would be broadcast silently."""
    for leaf, shape in zip(leaves, found, strict=True):
        if leaf.shape != shape:
            raise StructureError(
                "Optimizer.apply_gradients",
                found=f"the slot {leaf.label!r} of variable {leaf.variable!r} has the shape {shape}, and needs "
                f"{leaf.shape}: the variable has changed its shape",
                rule="the slots of an optimizer have the shape that the variable had in the first update",
                remedy="create a new optimizer after the change of shape, or use one without slots, such as plain SGD",
            )


def check_is_independent(init: Callable[..., Any], stored: Mapping[str, Any], assigned: Sequence[str]) -> None:
    """Raises an error if an optimizer's initial state depends on variables that the same trace has already assigned.

    The state is computed from the stored values, because the assigned ones do not exist before the program runs.

    Args:
        init: The `init` of the optax transformation.
        stored: The stored values of the variables, by name.
        assigned: The names of the variables that were assigned.
    """
    names = sorted(stored)  # as `jax.make_jaxpr` flattens a dict
    jaxpr = jax.make_jaxpr(init)(dict(stored)).jaxpr
    if any(reached_results(jaxpr, [names.index(name) for name in assigned])):
        raise ContextError(
            "Optimizer.apply_gradients",
            found=f"{', '.join(map(repr, assigned))} was assigned earlier in the compiled function that creates the "
            "optimizer's slots, and their initial values depend on the value of the variable",
            rule="slots are created from the values that the variables have when the compiled function is called",
            remedy="call optimizer.build(variables) before the first compiled step, after the assignment",
        )
