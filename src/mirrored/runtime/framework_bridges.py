"""Connects frameworks whose models create their own variables, when the program opens a strategy's scope.

A framework that is imported while a scope is open is connected at the end of its import, so the order of imports does
not matter.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

_bridges: dict[str, str] = {}
_roots: dict[str, str] = {}
_warned: set[str] = set()


def set_bridges(bridges: Mapping[str, str], roots: Mapping[str, str]) -> None:
    """Registers the bridges: the modules of `mirrored` that connect frameworks.

    Args:
        bridges: The bridge of each framework, by the framework module whose presence in `sys.modules` shows its use.
        roots: That framework module, by the package that a program imports.
    """
    _bridges.update(bridges)
    _roots.update(roots)


def connect() -> None:
    """Connects the frameworks that the program has imported."""
    for framework, bridge in _bridges.items():
        if framework in sys.modules:
            module = importlib.import_module(bridge)
            # A bridge imports its framework. If a scope is open, the end of that import calls `connect` again, before
            # the bridge is complete. Such a bridge is skipped here; it connects at the end of its own import.
            if not getattr(module.__spec__, "_initializing", False):
                module.connect()


def watch_imports() -> Finder | None:
    """Connects frameworks at their import from now on. Returns None if all of them are already imported."""
    for root, shown_by in _roots.items():
        if root in sys.modules and shown_by not in sys.modules:
            _warn_of_backend(root)
    awaited = [root for root, shown_by in _roots.items() if shown_by not in sys.modules]
    if not awaited:
        return None
    finder = Finder(awaited)
    sys.meta_path.insert(0, finder)
    return finder


def end_watching(finder: Finder | None) -> None:
    """Removes the finder that `watch_imports` has installed."""
    if finder is not None:
        sys.meta_path.remove(finder)


def _warn_of_backend(root: str) -> None:
    """Warns once if a framework uses a backend other than JAX, so that its models cannot be distributed."""
    module = sys.modules[root]
    backend = getattr(getattr(module, "backend", None), "backend", None)
    if root in _warned or not callable(backend) or backend() == "jax":
        return
    _warned.add(root)
    warnings.warn(
        f"{root} uses the backend {backend()!r}: models created in strategy.scope() are not distributed\n"
        f"  rule:   models of a strategy use the JAX backend\n"
        f"  remedy: write at the top of the program, before {root} is imported: "
        f"import os; os.environ['{root.upper()}_BACKEND'] = 'jax'",
        stacklevel=4,
    )


class Finder(importlib.abc.MetaPathFinder):
    """Import finder that delegates to the other finders and connects a framework at the end of its import."""

    def __init__(self, awaited: Sequence[str]) -> None:
        self._awaited = awaited
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec that Python finds, with a loader that connects the framework."""
        if fullname not in self._awaited or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Delegates to another loader and then calls `connect`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        created: types.ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        connect()
