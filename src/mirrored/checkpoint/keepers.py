"""Chooses the objects that keep a restored `Checkpoint` alive until all its saved values are restored."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import jax

from mirrored.checkpoint.graph import Graph, paths_to
from mirrored.checkpoint.matching import paths_above, resolve
from mirrored.checkpoint.open_classes import is_named_like_library, package_of
from mirrored.checkpoint.succession import Succession

_ADDS_NO_ATTRIBUTE: Final = frozenset({"equinox", "flax", "jax", "jaxlib", "numpy", "optax", "tensorflow", "torch"})


def keepers(graph: Graph, roots: Iterable[Any], succession: Succession) -> Iterator[Any]:
    """Yields the objects that keep a `Checkpoint` alive while its restores are pending.

    Each of them gets a reference to the checkpoint. A plain Python object gets one only if saved values wait for it or
    for an object below it. Other plain objects, such as a configuration that several models share, get no attribute and
    do not keep the models alive.

    Args:
        graph: The state of the checkpoint's objects.
        roots: The root object of the checkpoint, if there is one.
        succession: The restores that wait.
    """
    yield from (one for one in roots if _is_of_framework(one) or _accepts_attribute(one))
    pending = [(manifest, paths_above(names)) for manifest, names in succession.pending()]
    others = graph.other_names(has_former=any(manifest.has_former_names for manifest, _ in pending))
    for key, one in graph.visited.items():
        if _is_of_framework(one):
            yield one
        elif _accepts_attribute(one):
            paths = list(paths_to(graph.names[key], others))
            if any(resolve(path, manifest) in waiting for manifest, waiting in pending for path in paths):
                yield one


def _has_attributes(value: object) -> bool:
    try:
        return type(object.__getattribute__(value, "__dict__")) is dict
    except AttributeError:
        return False


def _packages(value: object) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(value).__mro__}


def _is_of_framework(value: object) -> bool:
    return _has_attributes(value) and not _packages(value).isdisjoint({"keras", "mirrored"})


def _accepts_attribute(value: object) -> bool:
    """Returns whether an object can safely get an additional attribute.

    Pytrees, namespaces, and objects of Python and of libraries such as Flax cannot. The attributes of pytrees and of
    Flax's modules are their state, and those of namespaces are shown and compared.
    """
    if not _has_attributes(value) or isinstance(value, (SimpleNamespace, argparse.Namespace)):
        return False
    is_of_python = package_of(value) in sys.stdlib_module_names and not is_named_like_library(value)
    return not is_of_python and _packages(value).isdisjoint(_ADDS_NO_ATTRIBUTE) and jax.tree_util.all_leaves([value])
