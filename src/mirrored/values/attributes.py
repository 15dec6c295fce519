"""Looks up attributes of objects of users, whose class may define `__getattr__` in any way."""

from __future__ import annotations

import inspect
from typing import Any, Final

_ABSENT: Final = object()
# `getattr` with a default and `hasattr` take an `AttributeError` as absence, and let any other exception pass. The
# common idiom `class Attributes(dict): __getattr__ = dict.__getitem__` raises a `KeyError` for each absent name.


def attribute(value: object, name: str, default: Any = None) -> Any:
    """Returns an attribute of an object; `default` if it is absent, also if the object raises a `LookupError` for it.

    A property of the instances of a class, such as `np.float32.dtype`, is no attribute of the class.
    The type `Any` is that of `getattr`.
    """
    try:
        found = getattr(value, name, default)
    except LookupError:
        return default
    return default if isinstance(value, type) and inspect.isdatadescriptor(found) else found


def has_attribute(value: object, name: str) -> bool:
    """Returns whether `attribute` finds an attribute."""
    return attribute(value, name, _ABSENT) is not _ABSENT
