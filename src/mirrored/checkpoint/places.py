"""Places: locations of values in the user's objects, where a restore replaces them.

Tuples and frozen dataclasses are immutable. Replacing a value in one of them creates a changed copy and replaces the
original with this copy.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
from collections.abc import MutableMapping
from typing import Any

from mirrored.errors import ArgumentTypeError


class Place(abc.ABC):
    """The location of a value."""

    @abc.abstractmethod
    def get(self) -> Any:
        """Returns the current value."""

    @abc.abstractmethod
    def put(self, value: object) -> None:
        """Replaces the value."""

    @abc.abstractmethod
    def holder(self) -> Any:
        """Returns the object that holds the value."""


@dataclasses.dataclass(frozen=True)
class Root(Place):
    """An entry of a dict that belongs to the checkpoint itself."""

    parts: dict[str, Any]
    key: str

    def get(self) -> Any:
        """Returns the part."""
        return self.parts[self.key]

    def put(self, value: object) -> None:
        """Replaces the part."""
        self.parts[self.key] = value

    def holder(self) -> Any:
        """Returns the dict."""
        return self.parts


@dataclasses.dataclass(frozen=True)
class Attribute(Place):
    """An attribute of an object."""

    parent: Place
    name: str

    def holder(self) -> Any:
        """Returns the object with the attribute."""
        return self.parent.get()

    def get(self) -> Any:
        """Returns the attribute."""
        return getattr(self.parent.get(), self.name)

    def put(self, value: object) -> None:
        """Sets the attribute. A frozen object is replaced by a changed copy."""
        owner = self.parent.get()
        try:
            setattr(owner, self.name, value)
            return
        except dataclasses.FrozenInstanceError:
            changed = copy.copy(owner)
        object.__setattr__(changed, self.name, value)
        self.parent.put(changed)


@dataclasses.dataclass(frozen=True)
class Item(Place):
    """An entry of a dict, list or tuple."""

    parent: Place
    key: Any

    def holder(self) -> Any:
        """Returns the container."""
        return self.parent.get()

    def get(self) -> Any:
        """Returns the entry."""
        return self.parent.get()[self.key]

    def put(self, value: object) -> None:
        """Sets the entry. A tuple or an immutable mapping is replaced by a changed copy.

        Raises:
            ArgumentTypeError: The container is a mapping that can be neither changed nor copied.
        """
        owner = self.parent.get()
        if isinstance(owner, tuple):
            changed: list[Any] = [value if index == self.key else one for index, one in enumerate(owner)]
            self.parent.put(type(owner)(*changed) if hasattr(owner, "_fields") else type(owner)(changed))
        elif hasattr(owner, "__setitem__"):
            owner[self.key] = value
        elif isinstance(owner, MutableMapping) or not hasattr(owner, "copy"):
            raise _unchangeable(owner)
        else:
            self.parent.put(type(owner)({**owner, self.key: value}))


def defines(value: object, *methods: str) -> bool:
    """Returns whether an object defines these methods statically.

    `hasattr` is not sufficient: some objects return a value for any name, as `nnx.Rngs` does with random streams.
    """
    return not isinstance(value, type) and all(inspect.getattr_static(value, name, None) for name in methods)


def is_frozen(value: object) -> bool:
    """Returns whether `value` is a dataclass that is frozen (such as Flax structs) or overrides `__setattr__`."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    own_rule = getattr(type(value), "__setattr__", None) is not getattr(object, "__setattr__", None)
    return parameters is not None and (bool(parameters.frozen) or own_rule)


def _unchangeable(owner: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        "Checkpoint.restore",
        found=f"a {type(owner).__name__} that holds numbers or arrays and cannot be changed",
        rule="a restore replaces values in the object that holds them",
        remedy="hold the values in a dict, a list, a tuple or an object with attributes",
    )
