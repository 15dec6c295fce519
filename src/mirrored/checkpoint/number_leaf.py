"""The adapter by which a checkpoint reads and restores a number."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np

from mirrored.checkpoint.json_state import decode
from mirrored.checkpoint.leaves import Leaf, Undo
from mirrored.checkpoint.places import Item, Place, is_standard_dict
from mirrored.checkpoint.saved import Saved
from mirrored.checkpoint.saved_numbers import is_at_most, is_scalar_array, number_of, saved_number, scalar_array
from mirrored.data.elements import keeps_values


@dataclasses.dataclass(frozen=True)
class NumberLeaf(Leaf):
    """Adapter by which a checkpoint reads and restores a number stored in an object or container.

    A program replaces the number in the course of training, also by one of another type, or by an array without dims,
    such as a loss. A restore puts what was saved in its place, with its type, so that later arithmetic is the same.

    Attributes:
        place: Where it is stored.
        is_nested: Whether it is in an object inside an object. Checkpoints of earlier versions do not have these.
    """

    place: Place
    is_nested: bool = False

    @property
    def owner(self) -> int:
        """The Python `id` of the object that holds the number (numbers themselves may share an `id`)."""
        return id(self.place.holder())

    def outline(self) -> Saved:
        """Returns a `Saved` of kind ``"number"`` without data, with a dtype only if the number is a NumPy scalar."""
        value = self.place.get()
        return Saved("number", dtype=str(value.dtype) if isinstance(value, np.generic) else "")

    def accepts(self, saved: Saved) -> bool:
        """Returns whether a saved value can replace the current number.

        It must be a number or an array without dims, and be of the enum of the current number if that has one. If the
        current number is a NumPy scalar, the saved value must be of its kind (or a narrower one, such as int for
        float), or have a value that the dtype can represent.
        """
        dtype, kind = self.outline().dtype, type(self.place.get())
        if issubclass(kind, enum.Enum):
            return saved.kind == "number" and _is_of_enum(kind, decode(saved.value))
        if is_scalar_array(saved):
            return not dtype or is_at_most(saved, dtype)
        if saved.kind != "number" or not dtype:
            return saved.kind == "number"
        return bool(saved.dtype and is_at_most(saved, dtype)) or keeps_values(
            np.asarray(decode(saved.value)), np.dtype(dtype)
        )

    def read(self) -> Saved:
        """Returns the number as a Python number with the name of its type, in the form that checkpoints store."""
        place = self.place
        key = place.key if isinstance(place, Item) and is_standard_dict(place.holder()) else None
        return saved_number(place.get(), key if type(key) in (str, int) else None)

    def put(self, saved: Saved) -> Undo:
        """Replaces the number by a saved value, and returns a function that undoes the replacement."""
        place, before = self.place, self.place.get()
        value = number_of(saved) if saved.kind == "number" else scalar_array(saved)
        # Checkpoints of earlier versions lack the type of the number, which is that of the program then.
        is_of_unknown_type = isinstance(before, np.generic) and not saved.dtype
        place.put(type(before)(value) if is_of_unknown_type or isinstance(before, enum.Enum) else value)
        return lambda: place.put(before)


def _is_of_enum(kind: type[enum.Enum], value: object) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True
