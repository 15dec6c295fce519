"""The tree of names below `tf`: modules made of the tables."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from mirrored.tf._missing import missing

ROOT: Final = "mirrored.tf"


class Namespace(types.ModuleType):
    """A module of the facade, such as `tf.math`: filled from the tables, helpful about names that it lacks."""

    def __init__(self, path: str, names: Mapping[str, Any]) -> None:
        super().__init__(f"{ROOT}.{path}", f"TensorFlow's `tf.{path}` over JAX.")
        self._path = path
        self._names = names

    def __getattr__(self, name: str) -> Any:
        """Only called for names that are not there."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise missing(f"{self._path}.{name}", self._names)

    def __repr__(self) -> str:
        """Says what it is."""
        return f"<module 'mirrored.tf.{self._path}'>"


def build(names: Mapping[str, Any]) -> dict[str, Any]:
    """Makes modules of dotted names, enters them in `sys.modules`, and returns what belongs at the top.

    Args:
        names: ``{"math.abs": function, "abs": function, ...}``.
    """
    top: dict[str, Any] = {}
    spaces: dict[str, Namespace] = {}
    for path in names:
        parts = path.split(".")
        for depth in range(1, len(parts)):
            _space(".".join(parts[:depth]), names, spaces, top)
    for path, value in names.items():
        parent, _, leaf = path.rpartition(".")
        if parent:
            setattr(spaces[parent], leaf, value)
        else:
            top[leaf] = value
    return top


def _space(path: str, names: Mapping[str, Any], spaces: dict[str, Namespace], top: dict[str, Any]) -> None:
    if path in spaces:
        return
    space = spaces[path] = Namespace(path, names)
    sys.modules[f"{ROOT}.{path}"] = space
    parent, _, leaf = path.rpartition(".")
    if parent:
        setattr(spaces[parent], leaf, space)
    else:
        top[leaf] = space


def lookup(names: Mapping[str, Any], lazy: Mapping[str, Callable[[], Any]]) -> Callable[[str], Any]:
    """The module `__getattr__` of `tf` itself: loads what is loaded on first use, else says what is missing."""

    def find(name: str) -> Any:
        if name in lazy:
            return lazy[name]()
        if name.startswith("__"):
            raise AttributeError(f"module 'mirrored.tf' has no attribute {name!r}")
        raise missing(name, names)

    return find
