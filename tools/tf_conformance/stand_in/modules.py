"""The modules of the package `tensorflow`, which tests import."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tf_conformance.stand_in.facade import look_up
from tf_conformance.stand_in.missing import MissingName
from tf_conformance.stand_in.tables import NOT_FROM_FACADE, tables

# Modules that have submodules: an attribute of theirs may be a module.
_PACKAGES: Final = frozenset(
    f"tensorflow{path}"
    for path in (
        "", ".core", ".core.framework", ".core.protobuf", ".core.util", ".python", ".python.autograph",
        ".python.autograph.core", ".python.checkpoint", ".python.client", ".python.compat", ".python.data",
        ".python.data.experimental", ".python.data.experimental.ops", ".python.data.experimental.service",
        ".python.data.ops", ".python.distribute", ".python.distribute.cluster_resolver",
        ".python.distribute.coordinator", ".python.distribute.v1", ".python.eager",
        ".python.eager.polymorphic_function", ".python.framework", ".python.layers", ".python.lib", ".python.lib.io",
        ".python.module", ".python.ops", ".python.ops.losses", ".python.ops.ragged", ".python.platform",
        ".python.saved_model", ".python.tpu", ".python.trackable", ".python.training", ".python.types", ".python.util",
    )
)  # fmt: skip
# Helpers of TensorFlow's tests that are executed as they are.
_HELPERS: Final = {
    "tensorflow.python.framework.test_combinations": "framework/test_combinations.py",
    "tensorflow.python.distribute.strategy_test_lib": "distribute/strategy_test_lib.py",
}


class StandInModule(types.ModuleType):
    """A module of `tensorflow`: names of the tables, then submodules, then the facade's, else missing ones."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if path in _PACKAGES or self.__name__ in _PACKAGES:
            return importlib.import_module(path)
        if self.__name__ not in NOT_FROM_FACADE:
            try:
                found = look_up(name)
            except AttributeError:
                return MissingName(path)
            setattr(self, name, found)
            return found
        return MissingName(path)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `tensorflow` and everything below it.

    Args:
        tests: The folder `tensorflow/python` with the helpers of the tests.
    """

    def __init__(self, tests: Path) -> None:
        self._tests = tests

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "tensorflow" or name.startswith("tensorflow."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        helper = _HELPERS.get(module.__name__)
        if helper is not None:
            file = self._tests / helper
            exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
        module.__dict__.update(tables().get(module.__name__.removeprefix("tensorflow.").removeprefix("python."), {}))


def install(tests: Path) -> None:
    """Puts the stand-in in place of the package `tensorflow`.

    Args:
        tests: The folder `tensorflow/python` with the helpers of the tests.
    """
    sys.meta_path.insert(0, _Finder(tests))
