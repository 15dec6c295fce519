"""Validates the objects that are passed to `Checkpoint`."""

from __future__ import annotations

import functools
from typing import Any

from mirrored.checkpoint.keras_slots import keras_slots
from mirrored.checkpoint.leaves import has_position, leaf_of
from mirrored.checkpoint.objects import has_slots, is_container, keras_leaf, root_parts
from mirrored.checkpoint.open_classes import is_open
from mirrored.checkpoint.places import Root
from mirrored.checkpoint.saved_numbers import is_number
from mirrored.errors import ArgumentError


def checked_part(name: str, part: object) -> Any:
    """Checks that an object passed to `Checkpoint` has state that can be saved, and returns the object.

    Raises:
        ArgumentError: The object has no state.
    """
    can_hold = is_open(part) or is_container(part) or is_number(part) or has_position(part)
    can_hold = can_hold or isinstance(part, functools.partial)
    if part is None or isinstance(part, type) or not (can_hold or leaf_of(part, Root({}, "")) is not None):
        raise ArgumentError(
            "Checkpoint",
            found=f"{name}={part!r}"[:200] + " holds no state",
            rule="each keyword argument must hold state: variables, arrays, numbers, or an object with get_state and "
            "set_state",
            remedy="pass an object that holds state; for a dataset pass its iterator: dataset_iterator=iter(dataset)",
        )
    return part


def checked_root(root: object) -> Any:
    """Checks that an object, such as a model, can be the root of a `Checkpoint`, and returns the object.

    Raises:
        ArgumentError: The object has no state, or is an optimizer, a variable or an array, which needs a name.
    """
    is_optimizer = has_slots(root) or keras_slots(root) is not None
    if is_optimizer or keras_leaf(root) is not None or leaf_of(root, Root({}, "")) is not None:
        kind = "optimizer" if is_optimizer else "value"
        raise ArgumentError(
            "Checkpoint",
            found=f"the root is {'an optimizer' if is_optimizer else 'a single value'} ({type(root).__name__})",
            rule="the root must be an object whose attributes hold state, such as a model; optimizers, variables and "
            "arrays need a name",
            remedy=f"pass it by name: Checkpoint({kind}={kind})",
        )
    return checked_part("root", root)


def check_free(name: str, part: object, root: dict[str, Any]) -> None:
    """Raises an error if the root object has an attribute `name` whose value is not the keyword argument `part`.

    Args:
        name: The name of the keyword argument.
        part: Its value.
        root: The root object under the key ``root``, or an empty dict.

    Raises:
        ArgumentError: There is such an attribute.
    """
    inside = root_parts(root["root"], Root(root, "root")) if root else ()
    if all(one.name != name or one.value is part for one in inside):
        return
    raise ArgumentError(
        "Checkpoint",
        found=f"Cannot create a Checkpoint with keyword argument {name} if root.{name} already exists",
        rule="a name can stand for one object only: the parts of the root and the keyword arguments share names",
        remedy=f"pass the object under another name than {name!r}",
    )
