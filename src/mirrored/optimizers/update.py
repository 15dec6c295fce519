"""The pure part of an update: a function from gradients, parameters and slots to new parameters and slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mirrored.optimizers.clipping import Clipping
from mirrored.optimizers.slot_layout import SlotLayout, lay_out

Arrays = dict[str, jax.Array]
TransformFactory = Callable[[Any], optax.GradientTransformation]
"""A function from a learning rate (None for a finished transform) to the transform."""


@dataclasses.dataclass(frozen=True, order=True)
class SlotKey:
    """Identifies a slot.

    Attributes:
        address: The path in the optax state, without the variable's name.
        variable: The name of the variable that owns the slot; empty for a slot that a cohort shares.
        cohort: The cohort that shares the slot; -1 for a variable's slot.
    """

    address: str
    variable: str = ""
    cohort: int = -1


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
    """What one `apply_gradients` updates: the variables by name, the cohort of each, and the slots in order.

    A *cohort* is a set of variables that were first updated together. They share the state that optax keeps once (a
    step counter). Variables that are added later, or updated in separate calls, form another cohort and start at step
    0, as in a separate optimizer.
    """

    names: tuple[str, ...]
    cohorts: tuple[int, ...]
    slots: tuple[SlotKey, ...]

    def members(self, cohort: int) -> list[str]:
        """Returns the names of the variables of one cohort."""
        return [name for name, own in zip(self.names, self.cohorts, strict=True) if own == cohort]


def slot_key(address: str, variable: str | None, cohort: int) -> SlotKey:
    """Returns the key of a leaf's slot."""
    return SlotKey(address, cohort=cohort) if variable is None else SlotKey(address, variable=variable)


def describe(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of arrays or variables."""
    return {name: jax.ShapeDtypeStruct(tuple(array.shape), array.dtype) for name, array in arrays.items()}


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """An update rule: gradient clipping, then an optax transform made from the learning rate.

    optax relies on JAX's standard dtype promotion, so the rule always computes under it, regardless of the caller's
    setting.
    """

    factory: TransformFactory
    clipping: Clipping

    def layout(self, parameters: Mapping[str, Any]) -> SlotLayout:
        """Returns the layout of the state for these parameters (arrays, variables or their descriptions)."""
        with jax.numpy_dtype_promotion("standard"):
            return lay_out(self.factory(jnp.zeros(())), describe(parameters))

    def initial_state(self, parameters: Arrays, learning_rate: Any) -> list[jax.Array]:
        """Returns the initial state for these parameters, one array per leaf in the order of `layout`."""
        with jax.numpy_dtype_promotion("standard"):
            return self.layout(parameters).unpack(self.factory(learning_rate).init(parameters))

    def __call__(
        self,
        plan: UpdatePlan,
        learning_rate: jax.Array | None,
        gradients: Sequence[jax.Array],
        parameters: Sequence[jax.Array],
        slots: Sequence[jax.Array],
        extra: Mapping[str, Any],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the new parameters and slots, with unchanged shapes and dtypes.

        The transform runs once per cohort, over *all* variables of the call, with that cohort's shared state. Only the
        cohort's own results are kept from its run. So a norm over all gradients covers all gradients of the call, and
        the compiler removes the unused results as dead code.
        """
        with jax.numpy_dtype_promotion("standard"):
            old = dict(zip(plan.names, parameters, strict=True))
            clipped = self.clipping.apply(dict(zip(plan.names, gradients, strict=True)))
            update = optax.with_extra_args_support(self.factory(learning_rate)).update
            layout = self.layout(old)
            before = dict(zip(plan.slots, slots, strict=True))
            after: dict[SlotKey, jax.Array] = {}
            new: Arrays = {}
            for cohort in sorted(set(plan.cohorts)):
                members = plan.members(cohort)
                keys = [slot_key(leaf.address, leaf.variable, cohort) for leaf in layout.leaves]
                state = layout.pack([before[key] for key in keys])
                updates, state = update(dict(clipped), state, dict(old), **extra)
                new.update(_applied({name: old[name] for name in members}, updates))
                for leaf, key, value in zip(layout.leaves, keys, layout.unpack(state), strict=True):
                    if leaf.variable is None or leaf.variable in members:
                        after[key] = value
            return [new[name] for name in plan.names], [after[key] for key in plan.slots]


def _applied(parameters: Arrays, updates: Mapping[str, Any]) -> Arrays:
    applied: Arrays = optax.apply_updates(parameters, {name: updates[name] for name in parameters})
    return applied
