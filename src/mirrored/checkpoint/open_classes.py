"""Determines of which objects a checkpoint saves the attributes: those of the program and of its frameworks.

The objects of the standard library, except namespaces, hold no state of the program, nor do those of JAX and NumPy.
"""

from __future__ import annotations

import argparse
import enum
import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Final

# Packages whose objects hold no state that a checkpoint saves. Subclasses in other packages can hold state.
_CLOSED: Final = frozenset({"absl", "grain", "jax", "jaxlib", "numpy", "optax", "orbax", "scipy"})
# Subpackages of mirrored whose objects hold no variables, or only variables that belong to other objects (a compiled
# function, a tape).
_CLOSED_HERE: Final = frozenset(
    {
        "_jax",
        "analysis",
        "cluster",
        "collectives",
        "compilation",
        "data",
        "runtime",
        "strategies",
        "tape",
        "topology",
        "values",
    }
)
_HEAP_TYPE: Final = 1 << 9  # a flag of all classes that Python code creates, and of some that C code creates


def is_open(value: object) -> bool:
    """Returns whether a checkpoint saves the attributes of an object; False for objects of libraries such as NumPy."""
    if isinstance(value, (type, enum.Enum)):
        return False
    if isinstance(value, (SimpleNamespace, argparse.Namespace)):
        return True
    package, rest = package_of(value), type(value).__module__.partition(".")[2]
    if package == "mirrored":
        return rest.partition(".")[0] not in _CLOSED_HERE
    if package in sys.stdlib_module_names:
        return is_named_like_library(value)
    return package not in _CLOSED


def package_of(value: object) -> str:
    """Returns the top-level package in the `__module__` of an object's class, such as ``"numpy"``."""
    return type(value).__module__.partition(".")[0]


def is_named_like_library(value: object) -> bool:
    """Returns whether an object's class names a standard library module in `__module__`, but is not from that library.

    This is the case of classes in a file of the program with the name of a library module, such as ``code.py``, and of
    classes that `types.new_class`, `dataclasses.make_dataclass` (Python 3.11) or `exec` creates: their `__module__` is
    ``types`` or ``builtins``, which have no such name.
    """
    kind = type(value)
    if not kind.__flags__ & _HEAP_TYPE or package_of(value) not in sys.stdlib_module_names:
        return False
    if not any("__dict__" in vars(one) or "__slots__" in vars(one) for one in kind.__mro__):
        return False
    module = sys.modules.get(kind.__module__)
    is_there = hasattr(module, kind.__qualname__.partition(".")[0])
    return not (is_there and _is_library_file(getattr(module, "__file__", None)))


@functools.cache
def _is_library_file(file: str | None) -> bool:
    """Returns whether a module with this file is of the standard library; built-in and frozen modules have no file."""
    if file is None:
        return True
    path = Path(os.path.realpath(file))
    folders = {os.path.realpath(one) for one in (Path(os.__file__).parent, sysconfig.get_path("stdlib"))}
    is_inside = any(path.is_relative_to(folder) for folder in folders)
    return is_inside and not {"site-packages", "dist-packages"} & set(path.parts)
