"""Finds all variables and other state in a checkpoint's objects, and names each by its shortest attribute path."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np

from mirrored._jax.traces import Tracer
from mirrored.checkpoint.keras_slots import KerasGroup, keras_slots
from mirrored.checkpoint.leaves import Leaf, VariableLeaf, has_random_state, leaf_of, refuse_component
from mirrored.checkpoint.number_leaf import NumberLeaf
from mirrored.checkpoint.objects import (
    NEWEST,
    SINCE_RANDOM,
    CheckpointSlotGroup,
    HasSlots,
    KerasLeaf,
    Part,
    has_checkpoint_parts,
    has_no_value_yet,
    has_slots,
    holder_of,
    is_container,
    is_node,
    is_shareable,
    keras_leaf,
    keras_parts,
    parts_of,
    stored_variable,
)
from mirrored.checkpoint.open_classes import is_open
from mirrored.checkpoint.optimizer_state import RateLeaf, optimizer_parts, unbuilt_rate
from mirrored.checkpoint.places import Place, Root, is_derived, is_frozen
from mirrored.checkpoint.saved_numbers import is_number
from mirrored.checkpoint.unsaved_values import LIMIT, description_of
from mirrored.checkpoint.zones import Zone, zone_of
from mirrored.errors import ArgumentError
from mirrored.variables import Variable

SLOTS: Final = "slots"
_log = logging.getLogger("mirrored.checkpoint")


@dataclasses.dataclass
class Graph:
    """All state found in a checkpoint's objects, by name: variables, arrays, numbers, iterators, optimizers.

    Attributes:
        leaves: The pieces of state, by name.
        aliases: Other paths to named objects: ``{path: name}``.
        former: The names that checkpoints of earlier versions have for objects: ``{former name: name}``.
        groups: For every optimizer, the names of the variables that have slots, by group.
        optimizers: The optimizers, by name.
        visited: All visited objects, by `id`. Keeping them alive prevents the reuse of their ids.
        names: The names of the visited objects and of their variables, by `id`.
        variables: The variables (ours or Keras') by name.
        lists: The lists and deques by name.
        unsaved: The arrays in the checkpoint's own dicts, lists and tuples that cannot be saved, by name.
        sets: The names of sets with variables or arrays that are in no other object, and so are not saved.
        traced: The names of tracers, which have no value that could be saved.
        recent: The state that checkpoints of earlier versions do not have: ``{name: since which version}``.
        shared: The names of the state that optimizers keep once for a group of variables.
        holders: The names of the objects around each number, outermost first.
        repeated: Other paths to dataclasses with an own ``__setattr__``, whose values have a name for each path.
        places: Where the named objects are stored.
        alias_places: Where the paths in `aliases` are, for those of objects other than slots, and those in `repeated`.
        empty: The names of the dicts, lists and deques without items.
        described: Descriptions of texts and other values that are not saved, by name; None for configuration.
    """

    leaves: dict[str, Leaf] = dataclasses.field(default_factory=dict)
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    former: dict[str, str] = dataclasses.field(default_factory=dict)
    groups: dict[str, list[list[str]]] = dataclasses.field(default_factory=dict)
    optimizers: dict[str, HasSlots] = dataclasses.field(default_factory=dict)
    visited: dict[int, Any] = dataclasses.field(default_factory=dict)
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    lists: dict[str, list[Any] | deque[Any]] = dataclasses.field(default_factory=dict)
    unsaved: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    sets: list[str] = dataclasses.field(default_factory=list)
    traced: list[str] = dataclasses.field(default_factory=list)
    recent: dict[str, int] = dataclasses.field(default_factory=dict)
    shared: set[str] = dataclasses.field(default_factory=set)
    holders: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    repeated: dict[str, str] = dataclasses.field(default_factory=dict)
    places: dict[str, Place] = dataclasses.field(default_factory=dict)
    alias_places: dict[str, Place] = dataclasses.field(default_factory=dict)
    empty: list[str] = dataclasses.field(default_factory=list)
    described: dict[str, str | None] = dataclasses.field(default_factory=dict)

    def refuse_unsaved(self, called: str) -> None:
        """Raises an error if the state includes a single replica's copy of a variable, or if an array cannot be saved.

        Raises:
            ArgumentError: There is such a copy, or such an array in a container.
        """
        for leaf in self.leaves.values():
            if isinstance(leaf, VariableLeaf):
                refuse_component(leaf.variable, called)
        for name, array in self.unsaved.items():
            raise ArgumentError(
                called,
                found=f"{name} is an array of {array.dtype}",
                rule="a checkpoint saves arrays of numbers, not of texts, dates, records or objects",
                remedy="save numbers (dates.astype('int64'), text.encode() as uint8), or leave the array out of the "
                "checkpoint",
            )

    def drop_rates(self) -> None:
        """Removes unassigned learning rates of unbuilt optimizers from the state to save."""
        for name, leaf in list(self.leaves.items()):
            if isinstance(leaf, RateLeaf) and not leaf.rate.is_assigned:
                del self.leaves[name]

    def log_left_out(self, called: str, told: set[str]) -> None:
        """Warns once per name about sets and tracers that the checkpoint does not save."""
        in_set = "the state in %s: the items of a set have no order and no names. Keep them in a list or a dict"
        tracer = (
            "%s: a compiled function has set it while it was traced, and it has no value outside of the function. "
            "Return it from the function, or assign it to a variable"
        )
        for name, reason in ({one: in_set for one in self.sets} | {one: tracer for one in self.traced}).items():
            if name not in told:
                told.add(name)
                _log.warning(f"%s leaves out {reason}", called, name)

    def other_names(self, *, has_former: bool) -> dict[str, list[str]]:
        """Returns the alternative names of each object, as a dict keyed by the object's main name.

        Args:
            has_former: Whether to include the former names, as `Manifest.has_former_names` says of a checkpoint.
        """
        found: dict[str, list[str]] = {}
        for path, name in (*self.aliases.items(), *(self.former.items() if has_former else ())):
            found.setdefault(name, []).append(path)
        return found


def paths_to(name: str, others: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields all attribute paths to a value, including paths through aliases of the enclosing objects.

    Former names are combined with these, too: a slot of an optimizer has one under each path of the optimizer.

    Args:
        name: The name of the state.
        others: The result of `Graph.other_names`.
    """
    own = (name, *others.get(name, ()))
    yield from own
    for path in own:
        parts = path.split("/")
        for length in range(len(parts) - 1, 0, -1):
            for other in others.get("/".join(parts[:length]), ()):
                yield "/".join([other, *parts[length:]])


def walk(parts: Iterable[Part], of_root: Iterable[Part] = ()) -> Graph:
    """Traverses a checkpoint's objects, and returns a `Graph` of all state that they contain."""
    return _Walk(parts, of_root).graph


class _Walk:
    """The traversal of a checkpoint's objects, which collects their state in a `Graph`.

    Args:
        parts: The objects whose numbers are state.
        of_root: The other objects.
        outside: In the traversal of sets' items: names of the objects found before, by `id`; these are skipped.
    """

    def __init__(
        self, parts: Iterable[Part], of_root: Iterable[Part], outside: Mapping[int, str] | None = None
    ) -> None:
        self.graph = Graph()
        self._outside = outside
        self._names = self.graph.names
        self._queue: deque[tuple[Part, Zone]] = deque((part, Zone(numbers=True)) for part in parts)
        self._queue.extend((part, zone_of(part, Zone(numbers=False))) for part in of_root)
        self._changeable: dict[int, str] = {}
        self._late: deque[tuple[Part, Zone]] = deque()  # partials: what is in other objects too has its name there
        self._sets: list[Part] = []
        self._recent: deque[tuple[Part, Zone]] = deque()
        self._is_in_recent, self._since, self._since_of = False, 0, dict[str, int]()  # the last: of optimizers
        self._visit_all()
        self._add_all_slots()
        self._is_in_recent = True
        while self._recent:
            self._queue.append(self._recent.popleft())
            self._visit_all()
        self._add_all_slots()
        if outside is None:
            self.graph.sets.extend(self._sets_with_other_state())
        self._drop_configuration()

    def _visit_all(self) -> None:
        """Visits queued objects until all queues are empty."""
        while self._queue or self._late:
            if self._queue:
                self._visit(*self._queue.popleft())
            else:
                self._visit_parts(*self._late.popleft())

    def _add_all_slots(self) -> None:
        """Adds the optimizers' slot variables to the graph; called after all variables have names."""
        for name, optimizer in self.graph.optimizers.items():
            if name not in self.graph.groups:
                self._add_slots(name, optimizer)

    def _visit(self, part: Part, zone: Zone) -> None:
        name, value = part.name, part.value
        if part.since and not self._is_in_recent:
            self._recent.append((part, zone))
            return
        self._since = zone.since
        if part.former is not None:
            self.graph.former[part.former] = name
        if is_number(value):
            self._visit_number(part, zone)
            return
        self._describe(part, zone)
        if (zone.is_constant or zone.only_variables) and isinstance(value, (np.ndarray, jax.Array)):
            return
        if self._is_known(name, value):
            self.graph.alias_places[name] = part.place
            return
        self._note_place(part)
        if isinstance(value, functools.partial):
            self._late.append((part, zone))
            return
        if isinstance(value, (set, frozenset)):
            self._visit_set(part, value)
            return
        if self._visit_optimizer(part, zone) or self._visit_leaf(part, zone):
            return
        if isinstance(value, np.ndarray) and zone.numbers and not zone.holders:
            self.graph.unsaved[name] = value
        self._visit_parts(part, zone)

    def _visit_number(self, part: Part, zone: Zone) -> None:
        if zone.numbers:
            self._since = zone.since or (NEWEST + 1 if zone.is_inner else 0)  # older versions saved some of these
            self._add(part.name, NumberLeaf(part.place, is_nested=len(zone.holders) > 1))
            self.graph.holders[part.name] = zone.holders

    def _describe(self, part: Part, zone: Zone) -> None:
        text = description_of(part.value) if zone.numbers and len(self.graph.described) < LIMIT else None
        if text is not None:
            described = None if is_derived(part.place) else text
            self.graph.described[part.name], self.graph.holders[part.name] = described, zone.holders

    def _visit_parts(self, part: Part, zone: Zone) -> None:
        name, value = part.name, part.value
        if type(value) in (list, deque):
            self.graph.lists[name] = value
        if is_container(value) and is_shareable(value) and not value:
            self.graph.empty.append(name)
        unshared = () if is_shareable(value) else (*zone.unshared, id(value))
        if id(value) in zone.unshared:  # a cycle of such objects
            return
        of_keras = keras_parts(value, part.place)
        inner = self._zone_inside(name, value, zone)
        of_attributes = self._zone_of_attributes(name, value, zone)
        if of_keras is not None:
            inner = Zone(numbers=False, only_variables=zone.only_variables)
        inner = dataclasses.replace(inner, unshared=unshared, since=zone.since)
        of_attributes = dataclasses.replace(of_attributes, unshared=unshared, since=zone.since)
        for one in parts_of(value, part.place) if of_keras is None else of_keras:
            has_former = part.former is not None or one.former is not None
            former = f"{part.former or name}/{one.former or one.name}" if has_former else None
            named = dataclasses.replace(one, name=f"{name}/{one.name}", former=former)
            self._queue.append((named, zone_of(one, of_attributes if one.since else inner)))

    def _visit_set(self, part: Part, items: set[Any] | frozenset[Any]) -> None:
        """Schedules the items of a Python `set` for a later walk over the items of all sets."""
        if self._outside is None:
            self._sets.append(part)
            return
        if id(items) in self.graph.visited:
            return
        self.graph.visited[id(items)] = items
        one_by_kind = {type(one): one for one in items}  # sets of numbers or texts can be large
        open_kinds = {k for k, one in one_by_kind.items() if is_open(one) or isinstance(one, functools.partial)}
        inside = {str(number): one for number, one in enumerate(items) if type(one) in open_kinds}
        for number, one in inside.items():
            self._queue.append((Part(f"{part.name}/{number}", one, Root(inside, number)), Zone(numbers=False)))

    def _visit_optimizer(self, part: Part, zone: Zone) -> bool:
        """Adds an optimizer and its scalars, but not its slots, to the graph; returns False for other objects."""
        given = keras_slots(part.value) or part.value
        if not has_slots(given):
            return False
        self.graph.optimizers[part.name] = given
        self._since_of[part.name] = zone.since
        for label, variable in given.made().scalars.items():
            self._visit(Part(f"{part.name}/{label}", variable, part.place), zone)
        rate = unbuilt_rate(given)
        if rate is not None:
            self._add(f"{part.name}/learning_rate", RateLeaf(rate))
        for one in optimizer_parts(given, part.place):
            self._recent.append((dataclasses.replace(one, name=f"{part.name}/{one.name}"), zone_of(one, zone)))
        return True

    def _visit_leaf(self, part: Part, zone: Zone) -> bool:
        leaf = keras_leaf(part.value) or leaf_of(part.value, part.place)
        if isinstance(part.value, Tracer):
            self.graph.traced.append(part.name)
        if leaf is None:
            return False
        if zone.only_variables and not isinstance(leaf, (VariableLeaf, KerasLeaf)):
            return True
        known = self._names.get(id(leaf.variable)) if isinstance(leaf, VariableLeaf) else None
        if known is not None and leaf.owner != id(part.value):  # a Keras variable over a variable that has a name
            self._names[id(part.value)] = known
            if known != part.name:
                self.graph.aliases[part.name], self.graph.alias_places[part.name] = known, part.place
            return True
        if has_random_state(part.value):
            self._since = zone.since or SINCE_RANDOM
        self._add(part.name, leaf)
        if isinstance(leaf, (VariableLeaf, KerasLeaf)):
            self.graph.variables[part.name] = part.value
            self._names.setdefault(id(leaf.variable), part.name)
        return True

    def _zone_inside(self, name: str, value: object, zone: Zone) -> Zone:
        if is_container(value):
            return zone if isinstance(value, tuple) else dataclasses.replace(zone, is_constant=False)
        if isinstance(value, functools.partial):
            return Zone(numbers=False, is_constant=True, only_variables=zone.only_variables)
        return self._zone_of_attributes(name, value, zone)

    def _zone_of_attributes(self, name: str, value: object, zone: Zone) -> Zone:
        if zone.numbers and not zone.holders and has_checkpoint_parts(value):
            return dataclasses.replace(zone, is_constant=False, is_inner=True)
        holds = zone.numbers and is_open(value) and not is_node(value)
        holders = (*zone.holders, name) if holds else ()
        return Zone(numbers=holds, holders=holders, only_variables=zone.only_variables, is_inner=zone.is_inner)

    def _is_known(self, name: str, value: object) -> bool:
        """Records the path `name` as the name or an alias of `value`; returns whether `value` already had a name."""
        if self._outside is not None and id(value) in self._outside:
            return True
        has_parts = is_open(value) or is_container(value) or isinstance(value, (Variable, functools.partial))
        if not is_shareable(value) or not has_parts:
            return False
        known = self._names.get(id(value))
        if known is None:
            self._names[id(value)] = name
            self.graph.visited[id(value)] = value
            return False
        self.graph.aliases[name] = known
        return True

    def _note_place(self, part: Part) -> None:
        """Records where an object is, and the other paths to a dataclass that can be changed and has no aliases."""
        if self._names.get(id(part.value)) == part.name:
            self.graph.places[part.name] = part.place
        elif is_frozen(part.value) and not type(part.value).__dataclass_params__.frozen:
            first = self._changeable.setdefault(id(part.value), part.name)
            if first != part.name:
                self.graph.repeated[part.name], self.graph.alias_places[part.name] = first, part.place

    def _add(self, name: str, leaf: Leaf) -> None:
        if name in self.graph.leaves and self._outside is None:
            raise ArgumentError(
                "Checkpoint",
                found=f"two pieces of state have the name {name!r}",
                rule="every piece of state must have a unique name",
                remedy="rename one of them (the keys 1 and '1' of a dict have the same name, for example)",
            )
        self.graph.leaves[name] = leaf
        if self._since:
            self.graph.recent[name] = self._since

    def _add_slots(self, name: str, optimizer: HasSlots) -> None:
        self._since = self._since_of[name]
        groups = optimizer.made().groups
        former = {now: before for before, now in self.graph.former.items()}
        names = self._names_of(groups)
        self.graph.groups[name] = [[names[id(variable)] for variable in group.variables] for group in groups]
        for number, group in enumerate(groups):
            for label, slot in group.shared.items():
                self.graph.shared.add(f"{name}/{SLOTS}/{number}/{label}")
                self._add_slot(f"{name}/{SLOTS}/{number}/{label}", slot)
            if isinstance(group, KerasGroup):
                for label, before in group.former.items():
                    self.graph.former[f"{name}/{SLOTS}/{number}/{before}"] = f"{name}/{SLOTS}/{number}/{label}"
            for variable in group.in_slot_order:
                own = names[id(variable)]
                if own in former:
                    self.graph.former[f"{name}/{SLOTS}/{former[own]}"] = f"{name}/{SLOTS}/{own}"
                for label, slot in optimizer.slots(variable).items():
                    self._add_slot(f"{name}/{SLOTS}/{own}/{label}", slot)

    def _add_slot(self, name: str, slot: Variable) -> None:
        if not has_no_value_yet(slot) and not self._is_known(name, slot):
            self._add(name, keras_leaf(slot) or VariableLeaf(slot))

    def _names_of(self, groups: Iterable[CheckpointSlotGroup]) -> dict[int, str]:
        """Maps the `id` of each variable of an optimizer to the variable's path, or to ``:`` plus `Variable.name`.

        The latter is for variables found only through the optimizer. Equal names are numbered in the optimizer's order
        (``:w``, ``:w:1``), except with Keras, where no slot has the name of its variable.
        """
        names: dict[int, str] = {}
        taken: set[str] = set()
        for group in groups:
            for variable in group.variables:
                name = own = f":{variable.name.removesuffix(':0')}"
                numbers = itertools.count(1)
                while name in taken and not isinstance(group, KerasGroup):
                    name = f"{own}:{next(numbers)}"
                names.setdefault(id(variable), self._names.get(id(stored_variable(variable)), name))
                taken.add(names[id(variable)])
        return names

    def _sets_with_other_state(self) -> list[str]:
        """Returns the names of Python sets with variables or arrays that the checkpoint finds nowhere else.

        One walk enters the items of all sets, so that objects that refer to each other through sets are visited once.
        Names in this walk begin with the set's number; state in several sets has the number of the first set.
        """
        numbered = [dataclasses.replace(part, name=str(number)) for number, part in enumerate(self._sets)]
        found = _Walk((), numbered, outside=self._names).graph if numbered else Graph()
        others: set[int] = set()
        for name, leaf in found.leaves.items():
            holder = holder_of(leaf)
            if holder is not None and id(holder) not in self._names:
                others.add(int(name.partition("/")[0]))
        return [self._sets[number].name for number in sorted(others)]

    def _drop_configuration(self) -> None:
        """Removes numbers in objects that hold variables: such numbers are configuration, not state."""
        stateful = [name for name, leaf in self.graph.leaves.items() if isinstance(leaf, (VariableLeaf, KerasLeaf))]
        owners = {holder for holders in self.graph.holders.values() for holder in holders}
        models = {owner for owner in owners if any(name.startswith(f"{owner}/") for name in stateful)}
        for name, holders in self.graph.holders.items():
            if not models.isdisjoint(holders):
                self.graph.recent.pop(name, None)
                if self.graph.leaves.pop(name, None) is None:
                    self.graph.described[name] = None
