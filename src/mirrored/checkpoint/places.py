"""Locations of values in the user's objects (an attribute, a list item), where a restore replaces the values.

Tuples and frozen dataclasses are immutable. Replacing a value in one of them creates a changed copy and replaces the
original with this copy.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping
from typing import Any, TypeGuard

from mirrored.errors import ArgumentError, ArgumentTypeError


class Place(abc.ABC):
    """Base class of the locations where a value can be stored, such as an attribute or a list item.

    A restore replaces values through their locations.
    """

    @abc.abstractmethod
    def get(self) -> Any:
        """Returns the value that is stored at this location."""

    @abc.abstractmethod
    def put(self, value: object) -> None:
        """Replaces the value that is stored at this location."""

    @abc.abstractmethod
    def holder(self) -> Any:
        """Returns the object that contains the value: the owner of the attribute, or the container of the item."""


@dataclasses.dataclass(frozen=True)
class Root(Place):
    """The location of an object that was passed to `Checkpoint` as a keyword argument."""

    parts: dict[str, Any]
    key: str

    def get(self) -> Any:
        """Returns the object that was passed to the checkpoint as this keyword argument."""
        return self.parts[self.key]

    def put(self, value: object) -> None:
        """Replaces the object that was passed to the checkpoint as this keyword argument."""
        self.parts[self.key] = value

    def holder(self) -> Any:
        """Returns the dict of all objects that were passed to the checkpoint."""
        return self.parts


@dataclasses.dataclass(frozen=True)
class Attribute(Place):
    """The location of a value in an attribute of an object."""

    parent: Place
    name: str

    def holder(self) -> Any:
        """Returns the object that has the attribute."""
        return self.parent.get()

    def get(self) -> Any:
        """Returns the value of the attribute."""
        return getattr(self.parent.get(), self.name)

    def put(self, value: object) -> None:
        """Sets the attribute to `value`; a frozen object is replaced by a modified copy instead."""
        owner = self.parent.get()
        try:
            setattr(owner, self.name, value)
            return
        except AttributeError:  # a frozen dataclass, or a frozen class of `attrs`
            changed = copy.copy(owner)
        object.__setattr__(changed, self.name, value)
        self.parent.put(changed)


@dataclasses.dataclass(frozen=True)
class Item(Place):
    """The location of a value in an item of a dict, list or tuple."""

    parent: Place
    key: Any

    def holder(self) -> Any:
        """Returns the dict, list or tuple that contains the item."""
        return self.parent.get()

    def get(self) -> Any:
        """Returns the value at this key or index of the dict, list or tuple."""
        return self.parent.get()[self.key]

    def put(self, value: object) -> None:
        """Sets the item to `value`; a tuple or immutable mapping is replaced by a modified copy instead.

        Raises:
            ArgumentTypeError: The container is a mapping that can be neither changed nor copied.
        """
        owner = self.parent.get()
        if isinstance(owner, tuple):
            changed: list[Any] = [value if index == self.key else one for index, one in enumerate(owner)]
            self.parent.put(type(owner)(*changed) if hasattr(owner, "_fields") else type(owner)(changed))
        elif hasattr(owner, "__setitem__") and self._try_set(owner, value):
            return
        elif isinstance(owner, MutableMapping) or not hasattr(owner, "copy"):
            raise _unchangeable_error(owner)
        else:
            self.parent.put(type(owner)({**owner, self.key: value}))

    def _try_set(self, owner: Any, value: object) -> bool:
        """Sets the item and returns True; returns False if the mapping is immutable, such as a `FrozenDict`."""
        try:
            owner[self.key] = value
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            if isinstance(owner, MutableMapping) or not isinstance(owner, Mapping):
                raise
            return False
        return True


@dataclasses.dataclass(frozen=True)
class Argument(Place):
    """The location of a value in a positional argument of a `functools.partial`."""

    parent: Place
    index: int

    def holder(self) -> Any:
        """Returns the `functools.partial` that has the argument."""
        return self.parent.get()

    def get(self) -> Any:
        """Returns the value of this positional argument of the `functools.partial`."""
        return self.parent.get().args[self.index]

    def put(self, value: object) -> None:
        """Replaces the immutable `functools.partial` by a new `functools.partial` with `value` as this argument."""
        owner = self.parent.get()
        changed = [value if index == self.index else one for index, one in enumerate(owner.args)]
        self.parent.put(type(owner)(owner.func, *changed, **owner.keywords))


def defines(value: object, *methods: str) -> bool:
    """Returns whether an object or its class defines the given methods; does not call `__getattr__`.

    `hasattr` is not sufficient: some objects return a value for any name, as `nnx.Rngs` does with random streams.
    """
    return not isinstance(value, type) and all(inspect.getattr_static(value, name, None) for name in methods)


def is_standard_dict(value: object) -> bool:
    """Returns whether `value` is a dict of Python, to which a restore can add items (`grows`)."""
    return type(value) in (dict, OrderedDict, Counter, defaultdict)


def grows(value: object) -> TypeGuard[dict[Any, Any]]:
    """Returns whether a restore adds saved items to `value`: a counter, default dict or empty dict.

    Reading a missing item of the first two gives a default: programs do not create the item. The missing items of a
    dict with others can be those that the program has no more.
    """
    return type(value) in (Counter, defaultdict) or (is_standard_dict(value) and not value)


def is_derived(place: Place) -> bool:
    """Returns whether an attribute has a value that its class makes: a `functools.cached_property`, or a name.

    Keras and `threading` give each object a name of its own, with the number of objects before it.
    """
    if not isinstance(place, Attribute):
        return False
    classes = type(place.holder()).__mro__
    is_cached = any(isinstance(vars(one).get(place.name), functools.cached_property) for one in classes)
    return is_cached or place.name in ("name", "_name")


def is_frozen(value: object) -> bool:
    """Returns whether `value` is a dataclass instance that is frozen or overrides `__setattr__`, like a Flax struct."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    own_rule = getattr(type(value), "__setattr__", None) is not getattr(object, "__setattr__", None)
    return parameters is not None and (bool(parameters.frozen) or own_rule)


def _unchangeable_error(owner: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        "Checkpoint.restore",
        found=f"a {type(owner).__name__} holds numbers or arrays and cannot be changed",
        rule="a restore must be able to replace values in the object that holds them",
        remedy="keep the values in a dict, a list, a tuple or an object with attributes",
    )


def refuse_private(name: str) -> None:
    """Raises an error if `name`, a keyword argument of `Checkpoint`, begins with an underscore.

    Raises:
        ArgumentError: The name begins with an underscore.
    """
    if name.startswith("_"):
        raise ArgumentError(
            "Checkpoint",
            found=f"the keyword argument {name!r} begins with an underscore",
            rule="attributes of a Checkpoint whose names begin with an underscore are none of its parts, and not saved",
            remedy=f"pass the object under another name, such as {name.lstrip('_') or 'part'!r}",
        )
