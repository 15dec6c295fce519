"""The slot variables of an optimizer, which hold its optax state, such as moments and step counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored._jax import caches
from mirrored._jax.constants import with_constants
from mirrored._jax.traces import Tracer, eager
from mirrored.errors import ArgumentError
from mirrored.optimizers.checks import check_is_independent, check_shapes
from mirrored.optimizers.rules import Clipping, TransformFactory
from mirrored.optimizers.slot_layout import SlotLayout, SlotLeaf, lay_out
from mirrored.runtime.ambient import ambient, within
from mirrored.variables import Variable

# The pure part of an update: a function from gradients, parameters and slots to new parameters and slots.

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, order=True)
class SlotKey:
    """A hashable key of a slot variable: its path in the optax state, and the variable or group that owns it.

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
    """The model variables that one `apply_gradients` call updates, and the optimizer's state variables for them.

    A *cohort* is a set of variables that were first updated together. They share the state that optax keeps once (a
    step counter). Variables that are added later, or updated in separate calls, form another cohort and start at step
    0, as in a separate optimizer.
    """

    names: tuple[str, ...]
    cohorts: tuple[int, ...]
    slots: tuple[SlotKey, ...]

    def members(self, cohort: int) -> list[str]:
        """Returns the names of the updated variables in a cohort, i.e. a group with a common step counter."""
        return [name for name, own in zip(self.names, self.cohorts, strict=True) if own == cohort]


def slot_key(address: str, variable: str | None, cohort: int) -> SlotKey:
    """Returns the key of a slot variable of one model variable, or of a group of variables if `variable` is None."""
    return SlotKey(address, cohort=cohort) if variable is None else SlotKey(address, variable=variable)


def describe(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of arrays, or of the current values of variables, as a dict keyed by name."""
    return {name: jax.ShapeDtypeStruct(_shape_now(array), array.dtype) for name, array in arrays.items()}


def _shape_now(array: Any) -> tuple[int, ...]:
    # The shape with which a variable was declared may have unknown dimensions.
    return tuple(array.component_shape if isinstance(array, Variable) else array.shape)


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """The computation of one update: gradient clipping, then an optax transformation.

    optax relies on JAX's standard dtype promotion, so the rule always computes under it, regardless of the caller's
    setting.
    """

    factory: TransformFactory
    clipping: Clipping

    def layout(self, parameters: Mapping[str, Any]) -> SlotLayout:
        """Returns the `SlotLayout` of the optax state for given parameters (arrays, variables or descriptions)."""
        with jax.numpy_dtype_promotion("standard"):
            return lay_out(self.factory(np.zeros((), jnp.result_type(float))), describe(parameters))

    def initial_state(
        self, parameters: Arrays, learning_rate: float | jax.Array | None, layout: SlotLayout | None = None
    ) -> list[jax.Array]:
        """Returns the initial optax state for given parameters, as a list of arrays in layout order."""
        with jax.numpy_dtype_promotion("standard"):
            init = self.factory(learning_rate).init
            return (layout or self.layout(parameters)).unpack(with_constants(init, parameters))

    def __call__(
        self,
        plan: UpdatePlan,
        learning_rate: jax.Array | None,
        gradients: Sequence[jax.Array],
        parameters: Sequence[jax.Array],
        slots: Sequence[jax.Array],
        extra: Mapping[str, Any],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Computes one optimizer update: returns the new parameters and slots, with unchanged shapes and dtypes.

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
                check_shapes(layout.leaves, [before[key].shape for key in keys])
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


# The slots of an optimizer: optax state in variables, created when an optimizer first sees their variables.


@dataclasses.dataclass(frozen=True)
class SlotGroup:
    """A group of variables that an optimizer first updated in the same call, and the state that they share.

    Attributes:
        variables: The variables, in the order in which they were added.
        shared: The state that they share, by label: ``{"count": ...}``.
        in_slot_order: The variables, in the order in which their slots were named and created.
    """

    variables: tuple[Variable, ...]
    shared: dict[str, Variable]
    in_slot_order: tuple[Variable, ...]


@dataclasses.dataclass(frozen=True)
class Made:
    """The state variables that an optimizer has created so far, for checkpoints.

    Attributes:
        scalars: The optimizer's own variables, by label: ``{"iterations": ..., "learning_rate": ...}``.
        groups: The variables that have slots, by group.
    """

    scalars: dict[str, Variable]
    groups: tuple[SlotGroup, ...]


class Slots:
    """All slot variables of an optimizer, which hold its optax state.

    Args:
        rule: The update rule whose state the slots hold.
        owner: The optimizer's name, the first part of the slots' names.
    """

    def __init__(self, rule: UpdateRule, owner: str) -> None:
        self._rule = rule
        self._owner = owner
        self._names: dict[int, str] = {}
        self._seen: dict[str, Variable] = {}
        self._cohorts: dict[str, int] = {}
        self._slots: dict[SlotKey, Variable] = {}
        self._plans: dict[tuple[int, ...], UpdatePlan] = {}

    @property
    def seen(self) -> list[Variable]:
        """The model variables for which this optimizer has slot variables, in the order in which they were added."""
        return list(self._seen.values())

    @property
    def variables(self) -> list[Variable]:
        """The slot variables, which hold the optax state, in creation order."""
        return list(self._slots.values())

    def of(self, variable: Variable) -> dict[str, Variable]:
        """Returns the slot variables of one model variable, by label: ``{"mu": ..., "nu": ...}``."""
        name = self._names.get(id(variable))
        found = {key: slot for key, slot in self._slots.items() if name is not None and key.variable == name}
        return _by_label(found.values())

    def groups(self) -> tuple[SlotGroup, ...]:
        """Returns the groups of variables that share optimizer state such as a step counter, as `SlotGroup` objects."""
        found = []
        for cohort in sorted(set(self._cohorts.values())):
            members = tuple(variable for name, variable in self._seen.items() if self._cohorts[name] == cohort)
            shared = _by_label(slot for key, slot in self._slots.items() if key.cohort == cohort)
            in_slot_order = tuple(self._seen[name] for name, own in self._cohorts.items() if own == cohort)
            found.append(SlotGroup(members, shared, in_slot_order))
        return tuple(found)

    def missing(self, variables: Sequence[Variable]) -> list[Variable]:
        """Returns those of the given variables for which the optimizer has no slot variables yet."""
        return [variable for variable in variables if id(variable) not in self._names]

    def build(self, variables: Sequence[Variable], rate_now: Callable[[], Any], order: Sequence[Variable] = ()) -> None:
        """Creates slot variables for those model variables that have none, as one group with a common step counter.

        Context: cross-replica, or without a strategy. `rate_now` returns the learning rate, None for an optax
        transformation that has its own; some initial states contain it (`optax.rprop`).

        Raises:
            ArgumentError: Variables are added to a rule that keeps one state whose shape depends on all variables.
        """
        for variable in self.missing(variables):
            variable.supply_value()  # A pending restore may also create this variable's slots, so it must run first.
        new = self.missing(variables)
        if not new:
            return
        rank = {id(variable): at for at, variable in enumerate(order)}
        named = dict(zip(self._new_names(new), new, strict=True))
        cohort = len(set(self._cohorts.values()))
        layout = self._rule.layout(named)
        self._check_shared(named, layout.leaves)
        state = self._initial_state(named, rate_now, layout)
        made: dict[SlotKey, Variable] = {}
        for leaf, value in zip(layout.leaves, state, strict=True):
            key = slot_key(leaf.address, leaf.variable, cohort)
            made[key] = Variable(value, trainable=False, name=self._slot_name(leaf, cohort, made))
            made[key].internal = True
        self._slots.update(made)
        self._cohorts.update(dict.fromkeys(named, cohort))
        # Names and slots do not follow `order`: programs may have saved the slots in a list.
        self._seen.update(sorted(named.items(), key=lambda item: rank.get(id(item[1]), 0)))
        self._names.update({id(variable): name for name, variable in named.items()})

    def plan(self, variables: Sequence[Variable]) -> UpdatePlan:
        """Returns which slot variables an update of the given variables reads and writes, as an `UpdatePlan`."""
        identity = tuple(map(id, variables))
        if identity not in self._plans:
            names = tuple(self._names[id(variable)] for variable in variables)
            cohorts = tuple(self._cohorts[name] for name in names)
            layout = self._rule.layout(dict(zip(names, variables, strict=True)))
            keys = {slot_key(leaf.address, leaf.variable, cohort) for leaf in layout.leaves for cohort in cohorts}
            self._plans[identity] = UpdatePlan(names, cohorts, tuple(sorted(keys)))
        return self._plans[identity]

    def select(self, plan: UpdatePlan) -> list[Variable]:
        """Returns the slot variables that an `UpdatePlan` reads and writes, in the order of the plan."""
        return [self._slots[key] for key in plan.slots]

    def _initial_state(
        self, named: dict[str, Variable], rate_now: Callable[[], jax.Array | None], layout: SlotLayout
    ) -> list[jax.Array]:
        """Computes the initial values of the given variables' slots eagerly, even inside a trace.

        In a trace it uses the stored values, that is, the variables' values when the compiled program starts.

        Raises:
            ContextError: The trace has assigned a variable before, and the initial state depends on its value.
        """
        values = {name: variable.read_value() for name, variable in named.items()}
        store = ambient().store if any(isinstance(value, Tracer) for value in values.values()) else None
        assigned = [name for name, variable in named.items() if store is not None and store.is_assigned(variable)]
        # Under JAX's default cache key. The key of the current trace is unique to that trace, so with it JAX would
        # compile every jitted helper again and keep an entry that is never reused.
        with eager(), caches.using(None):
            stored = {
                name: named[name].stored() if isinstance(value, Tracer) else value for name, value in values.items()
            }
            with within(store=None, listeners=()):
                rate = rate_now()
            if assigned:
                check_is_independent(self._rule.factory(rate).init, stored, assigned)
            return self._rule.initial_state(stored, 0.0 if isinstance(rate, Tracer) else rate, layout)

    def _new_names(self, variables: Sequence[Variable]) -> list[str]:
        """Returns each variable's key in the dicts that are passed to optax; the keys are unique within this optimizer.

        Generated names are numbered per optimizer. With the numbers that the process has given them, each model would
        have trees with other keys, which JAX would trace and cache again. The leaves could also have another order
        (`Variable_10` sorts before `Variable_9`), in which a global norm would add them up.
        """
        names: list[str] = []
        for variable in variables:
            base = "Variable" if variable.numbered else variable.name.removesuffix(":0")
            name, number = base, 0
            while name in self._seen or name in names:
                number += 1
                name = f"{base}_{number}"
            names.append(name)
        return names

    def _slot_name(self, leaf: SlotLeaf, cohort: int, made: dict[SlotKey, Variable]) -> str:
        owner = leaf.variable if leaf.variable is not None else f"shared_{cohort}" if cohort else "shared"
        taken = {slot.name for slot in made.values()}
        name, number = f"{self._owner}/{owner}/{leaf.label}", 0
        while name in taken or f"{name}:0" in taken:
            number += 1
            name = f"{self._owner}/{owner}/{leaf.label}_{number}"
        return name

    def _check_shared(self, named: dict[str, Variable], leaves: Sequence[SlotLeaf]) -> None:
        """Raises an error if adding variables would change the shape of optax state that all variables share."""
        if not self._seen:
            return
        together = self._rule.layout({**self._seen, **named})
        wanted = {leaf.address: leaf.shape for leaf in together.leaves if leaf.variable is None}
        alone = {leaf.address: leaf.shape for leaf in leaves if leaf.variable is None}
        if wanted != alone:
            raise ArgumentError(
                "Optimizer.apply_gradients",
                found=f"{', '.join(named)} are new variables for a transform that keeps one state for all variables",
                rule="the shape of that state depends on all variables, so none can be added after the first update",
                remedy="call optimizer.build with all variables before the first step, or use one optimizer per model",
            )


def _by_label(slots: Iterable[Variable]) -> dict[str, Variable]:
    return {slot.name.rsplit("/", 1)[-1]: slot for slot in slots}
