"""Checks of an optimizer's slots: their shapes, and the values from which they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from mirrored.analysis.dataflow import reached_results
from mirrored.errors import ContextError, StructureError

if TYPE_CHECKING:
    from mirrored.optimizers.slots import SlotLeaf


def check_shapes(leaves: Sequence[SlotLeaf], found: Sequence[tuple[int, ...]]) -> None:
    """Raises an error if a variable has changed its shape: its slots would be broadcast silently."""
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
    """Raises an error if the initial state depends on the values of variables that the trace has assigned before.

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
