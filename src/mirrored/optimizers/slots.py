"""The slots of an optimizer: optax state in variables, created when an optimizer first sees their variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from mirrored._jax import jit_key
from mirrored._jax.traces import eager, is_tracer
from mirrored.errors import ArgumentError
from mirrored.optimizers.slot_layout import SlotLeaf
from mirrored.optimizers.update import SlotKey, UpdatePlan, UpdateRule, slot_key
from mirrored.variables import Variable


@dataclasses.dataclass(frozen=True)
class SlotGroup:
    """A cohort of variables (see `UpdatePlan`) with their shared state.

    Attributes:
        variables: The variables, in the order in which they were added.
        shared: The state that they share, by label: ``{"count": ...}``.
    """

    variables: tuple[Variable, ...]
    shared: dict[str, Variable]


@dataclasses.dataclass(frozen=True)
class Made:
    """The existing state of an optimizer.

    Attributes:
        scalars: The optimizer's own variables, by label: ``{"iterations": ..., "learning_rate": ...}``.
        groups: The variables that have slots, by group.
    """

    scalars: dict[str, Variable]
    groups: tuple[SlotGroup, ...]


class Slots:
    """The slots of all variables that an optimizer has seen.

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
        """The variables that have slots, in the order in which they were added."""
        return list(self._seen.values())

    @property
    def variables(self) -> list[Variable]:
        """The slots, in creation order."""
        return list(self._slots.values())

    def of(self, variable: Variable) -> dict[str, Variable]:
        """Returns the slots of one variable, by label: ``{"mu": ..., "nu": ...}``."""
        name = self._names.get(id(variable))
        found = {key: slot for key, slot in self._slots.items() if name is not None and key.variable == name}
        return _by_label(found.values())

    def groups(self) -> tuple[SlotGroup, ...]:
        """Returns the variables by group (a cohort of `UpdatePlan`), each group with its shared slots."""
        found = []
        for cohort in sorted(set(self._cohorts.values())):
            members = tuple(variable for name, variable in self._seen.items() if self._cohorts[name] == cohort)
            shared = _by_label(slot for key, slot in self._slots.items() if key.cohort == cohort)
            found.append(SlotGroup(members, shared))
        return tuple(found)

    def missing(self, variables: Sequence[Variable]) -> list[Variable]:
        """Returns those of `variables` that have no slots yet."""
        return [variable for variable in variables if id(variable) not in self._names]

    def build(self, variables: Sequence[Variable], learning_rate: Any) -> None:
        """Creates the slots of new variables, as one cohort.

        Context: cross-replica, or without a strategy.

        Raises:
            ArgumentError: Variables are added to a rule that keeps one state whose shape depends on all variables.
        """
        for variable in self.missing(variables):
            variable.settle()  # A pending restore may also create this variable's slots, so it must run first.
        new = self.missing(variables)
        if not new:
            return
        named = dict(zip(self._new_names(new), new, strict=True))
        cohort = len(set(self._cohorts.values()))
        layout = self._rule.layout(named)
        self._check_shared(named, layout.leaves)
        state = self._initial_state(named, learning_rate)
        made: dict[SlotKey, Variable] = {}
        for leaf, value in zip(layout.leaves, state, strict=True):
            key = slot_key(leaf.address, leaf.variable, cohort)
            made[key] = Variable(value, trainable=False, name=self._slot_name(leaf, cohort, made))
            made[key].internal = True
        self._slots.update(made)
        self._cohorts.update(dict.fromkeys(named, cohort))
        self._seen.update(named)
        self._names.update({id(variable): name for name, variable in named.items()})

    def plan(self, variables: Sequence[Variable]) -> UpdatePlan:
        """Returns the plan of an update of these variables: which slots it reads and writes."""
        identity = tuple(map(id, variables))
        if identity not in self._plans:
            names = tuple(self._names[id(variable)] for variable in variables)
            cohorts = tuple(self._cohorts[name] for name in names)
            layout = self._rule.layout(dict(zip(names, variables, strict=True)))
            keys = {slot_key(leaf.address, leaf.variable, cohort) for leaf in layout.leaves for cohort in cohorts}
            self._plans[identity] = UpdatePlan(names, cohorts, tuple(sorted(keys)))
        return self._plans[identity]

    def select(self, plan: UpdatePlan) -> list[Variable]:
        """Returns the slots of a plan, in its order."""
        return [self._slots[key] for key in plan.slots]

    def _initial_state(self, named: dict[str, Variable], learning_rate: Any) -> list[jax.Array]:
        """Computes the initial state eagerly, also inside a trace.

        In a trace it uses the stored values, that is, the variables' values when the compiled program starts.
        """
        values = {name: variable.read_value() for name, variable in named.items()}
        # Under JAX's default cache key. The key of the current trace is unique to that trace, so with it JAX would
        # compile every jitted helper again and keep an entry that is never reused.
        with eager(), jit_key.using(None):
            stored = {name: named[name].stored() if is_tracer(value) else value for name, value in values.items()}
            rate = 0.0 if is_tracer(learning_rate) else learning_rate
            return self._rule.initial_state(stored, rate)

    def _new_names(self, variables: Sequence[Variable]) -> list[str]:
        names: list[str] = []
        for variable in variables:
            base = variable.name.removesuffix(":0")
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
        """Raises if adding variables would change the shape of a shared leaf."""
        if not self._seen:
            return
        together = self._rule.layout({**self._seen, **named})
        wanted = {leaf.address: leaf.shape for leaf in together.leaves if leaf.variable is None}
        alone = {leaf.address: leaf.shape for leaf in leaves if leaf.variable is None}
        if wanted != alone:
            raise ArgumentError(
                "Optimizer.apply_gradients",
                found=f"new variables {', '.join(named)} for a transform that keeps one state for all of its variables",
                rule="the shape of that state depends on all variables, so none can be added after the first update",
                remedy="call optimizer.build with all variables before the first step, or use one optimizer per model",
            )


def _by_label(slots: Iterable[Variable]) -> dict[str, Variable]:
    return {slot.name.rsplit("/", 1)[-1]: slot for slot in slots}
