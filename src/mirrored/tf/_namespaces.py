"""Creates the modules of `mirrored.tf`, such as `mirrored.tf.math`, from a table of names."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mirrored.tf._missing import missing_name_error

ROOT: Final = "mirrored.tf"


class Namespace(types.ModuleType):
    """A module such as `mirrored.tf.math`, whose error for a missing name suggests the closest existing name."""

    def __init__(self, path: str, find: Callable[[str], Any]) -> None:
        super().__init__(f"{ROOT}.{path}", f"TensorFlow's `tf.{path}` on JAX.")
        self._path = path
        self._find = find
        self._lazy: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        """Imports and returns an object at the first access to its name; raises an error for an unknown name."""
        value = self._find(f"{self._path}.{name}")
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        """Returns the names in the module, including the names of objects that are imported at first access."""
        return sorted({*vars(self), *self._lazy} - {"_find", "_lazy", "_path"})

    def __repr__(self) -> str:
        """Returns the module's dotted path as text, such as ``<module 'mirrored.tf.math'>``."""
        return f"<module 'mirrored.tf.{self._path}'>"


def finder(names: Mapping[str, Any], lazy: Mapping[str, Callable[[], Any]]) -> Callable[[str], Any]:
    """Returns a function that imports the object for a dotted name, and raises an error for an unknown name."""

    def find(path: str) -> Any:
        if path in lazy:
            return lazy[path]()
        if path.rpartition(".")[2].startswith("_"):  # a probe of a tool, such as a debugger or pytest
            raise AttributeError(f"module 'mirrored.tf' has no attribute {path!r}")
        raise missing_name_error(path, [*names, *lazy])

    return find


def build(
    names: Mapping[str, Any], lazy: Iterable[str], known: Iterable[str], find: Callable[[str], Any]
) -> dict[str, Any]:
    """Creates the modules for dotted names such as ``"math.abs"``; returns a dict from top-level names to values.

    The modules are entered in `sys.modules`.

    Args:
        names: ``{"math.abs": function, "abs": function, ...}``.
        lazy: Names that `find` loads later; their modules are created now.
        known: Names that do not exist, for which `find` raises an error; their modules are created now.
        find: Resolves names that a module does not have.
    """
    top: dict[str, Any] = {}
    spaces: dict[str, Namespace] = {}
    lazy = list(lazy)
    for path in [*names, *lazy, *known]:
        parts = path.split(".")
        for depth in range(1, len(parts)):
            _space(".".join(parts[:depth]), find, spaces, top)
    for path, value in names.items():
        parent, _, leaf = path.rpartition(".")
        if parent:
            setattr(spaces[parent], leaf, value)
        else:
            top[leaf] = value
        if isinstance(value, types.ModuleType):
            sys.modules[f"{ROOT}.{path}"] = value  # for `import mirrored.tf.experimental.numpy`
    for path in lazy:
        parent, _, leaf = path.rpartition(".")
        if parent:
            spaces[parent]._lazy.add(leaf)
    return top


def _space(path: str, find: Callable[[str], Any], spaces: dict[str, Namespace], top: dict[str, Any]) -> None:
    if path in spaces:
        return
    space = spaces[path] = Namespace(path, find)
    sys.modules[f"{ROOT}.{path}"] = space
    parent, _, leaf = path.rpartition(".")
    if parent:
        setattr(spaces[parent], leaf, space)
    else:
        top[leaf] = space
