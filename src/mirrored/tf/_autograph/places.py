"""Attributes and items that a branch or a loop body changes: read, set and compared, also if class code sets them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from malt.operators.variables import Undefined

from mirrored.tf._autograph.state import is_undefined


@dataclasses.dataclass(frozen=True)
class Place:
    """An attribute, an item, or the whole content of a list or array, which a branch or a loop body changes.

    The kind "own" is an attribute that is read and written without the property or `__setattr__` of the class; all
    attributes of this kind together are the kind "state".
    """

    owner: Any = dataclasses.field(compare=False)
    kind: Literal["attribute", "item", "content", "own", "state"]
    key: Any
    name: str = dataclasses.field(compare=False)
    identity: int

    def __str__(self) -> str:
        return self.name

    def holds_part_of(self, owners: set[int]) -> bool:
        """Returns whether the value contains a list or dict of which the identity is given."""
        todo, seen = [self.read()], set[int]()
        while todo:
            one = todo.pop()
            if id(one) in owners:
                return True
            if isinstance(one, (list, tuple, dict)) and id(one) not in seen:
                seen.add(id(one))
                todo.extend(one.values() if isinstance(one, dict) else one)
        return False

    def read(self) -> Any:
        """Returns the current value, or AutoGraph's marker of an undefined variable."""
        try:
            if self.kind == "attribute":
                return getattr(self.owner, self.key)
            if self.kind == "state":
                return dict(vars(self.owner))
            if self.kind == "own":
                return vars(self.owner).get(self.key, _default(self))
            if self.kind == "content":
                return self.owner.copy()
            if isinstance(self.owner, dict):
                return dict.get(self.owner, self.key, Undefined(self.name))  # not `[]`, which adds to a `defaultdict`
            return self.owner[self.key]
        except (AttributeError, LookupError):
            return Undefined(self.name)

    def item(self, key: object) -> Place:
        """Returns the place of an item of the same object."""
        return self._part("item", key, f"[{key!r}]")

    def own(self, key: str) -> Place:
        """Returns the place of an attribute of the same object, without the properties of its class."""
        return self._part("own", key, f".{key}")

    def _part(self, kind: Literal["item", "own"], key: object, shown: str) -> Place:
        owner, at, where = self.name.partition(" at ")
        return Place(self.owner, kind, key, f"{owner}{shown}{at}{where}", self.identity)

    def put(self, value: object) -> None:
        """Sets the value; removes the item or attribute if the value is undefined."""
        owner: Any = vars(self.owner) if self.kind == "own" else self.owner
        if self.kind == "content":
            _built_in(owner, "__setitem__")(owner, slice(None), value)
        elif is_undefined(value):
            with contextlib.suppress(AttributeError, KeyError):
                delattr(owner, self.key) if self.kind == "attribute" else _built_in(owner, "__delitem__")(
                    owner, self.key
                )
        elif self.kind == "attribute":
            setattr(owner, self.key, value)
        else:
            if isinstance(owner, (list, dict)) and has_setter(type(owner)):
                owner[self.key] = value  # it may store more elsewhere, or another value as the item
            _built_in(owner, "__setitem__")(owner, self.key, value)


def parts_of(owner: Any, name: str) -> list[Place]:
    """Returns the attributes of an object, as one place, and the lists, dicts and arrays in them."""
    if not hasattr(owner, "__dict__"):
        return []
    state = Place(owner, "state", None, name, id(owner))
    places = [state]
    for key, value in vars(owner).items():
        if isinstance(value, (list, dict)) or is_buffer(value):
            places.append(Place(value, "content", None, state.own(key).name, id(value)))
    return places


def _built_in(owner: object, method: str) -> Any:
    """Returns a method of a list, dict or array that is not written in Python, if there is one."""
    kind = type(owner)
    plain = (base for base in kind.__mro__ if _is_container(base) and not _is_python(vars(base).get(method)))
    return getattr(next((base for base in plain if method in vars(base)), kind), method)


def _is_container(kind: type) -> bool:
    return issubclass(kind, (list, dict, np.ndarray))


def has_setter(kind: type) -> bool:
    """Returns whether a class sets its items by a method that is written in Python."""
    return _is_python(getattr(kind, "__setitem__", None))


def _is_python(method: object) -> bool:
    return isinstance(method, types.FunctionType)


@dataclasses.dataclass(frozen=True)
class Record:
    """A list, dict or array, an attribute or an item, as it was before a branch or a loop body changed it."""

    place: Place
    before: Any
    parts: tuple[Record, ...] | None = None
    """The parts of the object, if the place is a property, or an item that a method written in Python sets."""

    def changed(self) -> Iterator[tuple[Place, Any]]:
        """Yields the places that may have changed, with their former values."""
        place, before = self.place, self.before
        if place.kind == "state":
            yield from _changed_attributes(place, before)
        elif place.kind == "content":
            yield from _changed_items(place, before)
        else:
            yield place, before

    def changes_parts(self) -> bool:
        """Returns whether a part of the object has changed."""
        return any(True for part in self.parts or () for _ in part.changed())

    def is_elsewhere(self) -> bool:
        """Returns whether the setter has stored the value in another object than its own.

        Then the property has another value than before, even while its object is as before. A property that computes a
        new object at every read does not show it: the result is False.
        """
        changed = [one for part in self.parts or () for one in part.changed()]
        now = {place: place.read() for place, _ in changed}
        undo(dict(changed))
        value, again = self.place.read(), self.place.read()
        undo(now)
        return value is again and differ(value, self.before)


def undo(former: dict[Place, Any]) -> None:
    """Sets places to their former values, the last one first."""
    for place, old in reversed(former.items()):
        if differ(place.read(), old):
            place.put(old)


def _changed_attributes(place: Place, before: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    for key in {**before, **vars(place.owner)}:
        own = place.own(key)
        old = before[key] if key in before else _default(own)
        if differ(own.read(), old):
            yield own, old


def _default(own: Place) -> Any:
    """Returns the value that the class gives to an attribute which the object lacks."""
    undefined = Undefined(own.name)
    found = getattr(type(own.owner), own.key, undefined)
    return undefined if hasattr(type(found), "__get__") else found


def _changed_items(place: Place, before: Any) -> Iterator[tuple[Place, Any]]:
    owner = place.owner
    if isinstance(before, dict):
        for key in {**before, **owner}:
            if key not in before or key not in owner or before[key] is not owner[key]:
                yield place.item(key), before.get(key, Undefined(place.name))
    elif isinstance(before, list) and len(owner) == len(before):
        for i, (old, now) in enumerate(zip(before, owner, strict=True)):
            if now is not old:
                yield place.item(i), old
    elif isinstance(before, list) or owner.tobytes() != before.tobytes():  # NaN equals NaN
        yield place, before


def differ(one: object, two: object) -> bool:
    """Returns whether two values are different objects; all undefined values are the same."""
    return one is not two and not (is_undefined(one) and is_undefined(two))


def is_property(kind: type, name: str) -> bool:
    """Returns whether code of a class runs when an attribute is assigned, as that of a property."""
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    native = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return inspect.isdatadescriptor(found) and not isinstance(found, native)


def is_buffer(owner: object) -> bool:
    """Returns whether an object is a NumPy array that can hold no tensors."""
    return isinstance(owner, np.ndarray) and owner.dtype != object
