"""Looks up attributes of objects of users, whose class may define `__getattr__` in any way."""

from __future__ import annotations

from typing import Any

# `getattr` with a default and `hasattr` take an `AttributeError` as absence, and let any other exception pass. The
# common idiom `class Attributes(dict): __getattr__ = dict.__getitem__` raises a `KeyError` for each absent name.


def attribute(value: object, name: str, default: Any = None) -> Any:
    """Returns an attribute of an object; `default` if it is absent, also if the object raises a `LookupError` for it.

    The type `Any` is that of `getattr`.
    """
    try:
        return getattr(value, name, default)
    except LookupError:
        return default


def has_attribute(value: object, name: str) -> bool:
    """Returns whether an object has an attribute; it has none if it raises a `LookupError` for the name."""
    try:
        return hasattr(value, name)
    except LookupError:
        return False
