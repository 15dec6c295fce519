"""Places: where a value sits in the user's objects, so that a restored one can be put there.

A tuple or a frozen dataclass cannot be changed: putting a value into one puts a changed copy where the old one sat.
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
    """Where a value sits."""

    @abc.abstractmethod
    def get(self) -> Any:
        """What sits there now."""

    @abc.abstractmethod
    def put(self, value: Any) -> None:
        """Puts another value there."""

    @abc.abstractmethod
    def holder(self) -> Any:
        """The object in which it sits."""


@dataclasses.dataclass(frozen=True)
class Root(Place):
    """An entry of a dict that the checkpoint itself keeps."""

    parts: dict[str, Any]
    key: str

    def get(self) -> Any:
        """The part."""
        return self.parts[self.key]

    def put(self, value: Any) -> None:
        """Replaces the part."""
        self.parts[self.key] = value

    def holder(self) -> Any:
        """The dict."""
        return self.parts


@dataclasses.dataclass(frozen=True)
class Attribute(Place):
    """An attribute of an object."""

    parent: Place
    name: str

    def holder(self) -> Any:
        """The object with the attribute."""
        return self.parent.get()

    def get(self) -> Any:
        """The attribute."""
        return getattr(self.parent.get(), self.name)

    def put(self, value: Any) -> None:
        """Sets the attribute; of a frozen object, in a copy of it."""
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
    """An entry of a dict or list, or of a tuple."""

    parent: Place
    key: Any

    def holder(self) -> Any:
        """The container."""
        return self.parent.get()

    def get(self) -> Any:
        """The entry."""
        return self.parent.get()[self.key]

    def put(self, value: Any) -> None:
        """Sets the entry; of a tuple, in a copy of it.

        Raises:
            ArgumentTypeError: It is a mapping that can neither be changed nor copied with a change.
        """
        owner = self.parent.get()
        if isinstance(owner, tuple):
            changed = [value if index == self.key else one for index, one in enumerate(owner)]
            self.parent.put(type(owner)(*changed) if hasattr(owner, "_fields") else type(owner)(changed))
        elif hasattr(owner, "__setitem__"):
            owner[self.key] = value
        elif isinstance(owner, MutableMapping) or not hasattr(owner, "copy"):
            raise _unchangeable(owner)
        else:
            self.parent.put(type(owner)({**owner, self.key: value}))


def defines(value: Any, *methods: str) -> bool:
    """Whether an object has these methods. Objects may answer to any name, as `nnx.Rngs` does with a random stream."""
    return not isinstance(value, type) and all(inspect.getattr_static(value, name, None) for name in methods)


def is_frozen(value: Any) -> bool:
    """Whether an object's attributes cannot be set: a frozen dataclass (Flax's structs), or one that refuses."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    own_rule = getattr(type(value), "__setattr__", None) is not getattr(object, "__setattr__", None)
    return parameters is not None and (bool(parameters.frozen) or own_rule)


def _unchangeable(owner: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        "Checkpoint.restore",
        found=f"a {type(owner).__name__} that holds numbers or arrays and cannot be changed",
        rule="restored values are put where the old ones were",
        remedy="hold them in a dict, a list, a tuple or an object",
    )
