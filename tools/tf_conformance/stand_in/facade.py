"""Looks a name of a TensorFlow module up in the facade, whose public names have other paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import mirrored.tf as tf
from mirrored.tf import _names

# Where a name is looked for first, if several namespaces have it.
_PREFERRED: Final = (
    "", "math", "nn", "linalg", "random", "distribute", "distribute.cluster_resolver", "data", "data.experimental",
    "test", "train", "config", "config.experimental", "errors", "debugging", "io", "io.gfile", "image", "nest",
    "strings",
    "initializers", "saved_model", "autodiff", "signal", "bitwise", "dtypes", "distribute.experimental", "experimental",
    "compat", "compat.v1", "compat.v1.train", "compat.v1.distribute", "compat.v1.losses", "keras.losses", "summary",
    "autograph", "autograph.experimental", "types.experimental",
)  # fmt: skip
_KNOWN: Final = {*_names.NAMES, *_names.LAZY}
_SUFFIXES: Final = ("_v2", "_v1", "V2", "V1", "_with_default")


def look_up(name: str) -> Any:
    """The public object of this name.

    Args:
        name: A name of a module of TensorFlow, such as `reduce_sum` or `assert_equal_v2`.

    Raises:
        AttributeError: The facade has no such name.
    """
    for spelling in (name, *(name.removesuffix(one) for one in _SUFFIXES if name.endswith(one))):
        for path in _paths(spelling):
            try:
                return _at(path)
            except AttributeError:
                continue
    raise AttributeError(name)


def _paths(name: str) -> Iterator[str]:
    for prefix in _PREFERRED:
        path = f"{prefix}.{name}" if prefix else name
        if path in _KNOWN or (not prefix and any(known.startswith(path + ".") for known in _KNOWN)):
            yield path
    others = (path for path in _KNOWN if path.rpartition(".")[2] == name)
    yield from sorted((path for path in others if not path.startswith(("keras", "compat.v1.keras"))), key=len)


def _at(path: str) -> Any:
    found: Any = tf
    for part in path.split("."):
        found = getattr(found, part)
    return found
