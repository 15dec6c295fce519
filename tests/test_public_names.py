"""Pins the public names: one that goes or comes is a decision, not an accident."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import types

import pytest

import mirrored as mr

NAMES = {
    "DistributedValues",
    "Function",
    "GradientAccumulator",
    "GradientTape",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "PerReplica",
    "Progress",
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "UnconnectedGradients",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "aggregate_gradients",
    "assign",
    "config",
    "custom_gradient",
    "errors",
    "experimental_set_strategy",
    "function",
    "functions_run_eagerly",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "mirror",
    "progress",
    "run_functions_eagerly",
    "stop_gradient",
    "unmirror",
    "variable_creator_scope",
}
# Loaded on first use, so that `import mirrored` stays quick.
LAZY_MODULES = {"checkpoint", "cluster", "collectives", "data", "elastic", "losses", "optimizers", "testing", "tf"}


def test_public_names_are_these():
    assert set(mr.__all__) == NAMES
    assert mr.__all__ == sorted(mr.__all__)


@pytest.mark.parametrize("name", sorted(NAMES | LAZY_MODULES))
def test_public_name_is_there_and_documented(name):
    value = getattr(mr, name)
    assert value.__doc__
    if not isinstance(value, types.ModuleType):
        assert value.__module__.partition(".")[0] == "mirrored"


# The public modules. The names of `mirrored.tf` have a table instead of examples (`test_names_of_the_facade...`); the
# errors have a page with a wrong and a right program (tests/test_error_pages.py).
PUBLIC_MODULES = (
    *("checkpoint", "cluster", "collectives", "config", "data", "elastic", "losses", "optimizers", "testing"),
)


def public_names_of(module: types.ModuleType) -> list[str]:
    """The names in `__all__`, or the classes and functions that a module defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    ]


MEMBERS = [("mirrored", name) for name in sorted(NAMES - {"config", "errors"})] + [
    (f"mirrored.{module}", name)
    for module in PUBLIC_MODULES
    for name in public_names_of(importlib.import_module(f"mirrored.{module}"))
]


def is_constant(value: object) -> bool:
    return not isinstance(value, type) and not callable(value)


@pytest.mark.parametrize(("module", "name"), MEMBERS, ids=[".".join(member) for member in MEMBERS])
def test_public_name_has_an_example(module, name):
    """The examples of all modules run in tests/test_doctests.py."""
    value = getattr(importlib.import_module(module), name)
    if is_constant(value):
        assert text_of_constant(module, name)
    else:
        assert ">>> " in (inspect.getdoc(value) or ""), f"{module}.{name} has no example"


def test_every_public_module_has_names():
    for module in PUBLIC_MODULES:
        assert [name for of, name in MEMBERS if of == f"mirrored.{module}"], module


def text_of_constant(module: str, name: str) -> str:
    """The string behind the assignment of a constant, in the module that a package imports it from."""
    for node in ast.parse(pathlib.Path(importlib.import_module(module).__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom) and name in {one.asname for one in node.names}:
            module = node.module
    body = ast.parse(pathlib.Path(importlib.import_module(module).__file__).read_text()).body
    for node, following in zip(body, body[1:], strict=False):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if name in {getattr(target, "id", None) for target in targets}:
            return following.value.value if isinstance(following, ast.Expr) else ""
    raise AssertionError(f"{module} does not assign {name}")


def test_names_of_the_facade_have_a_summary():
    """Except names of other packages, whose docstrings are theirs."""
    ours = [
        (path, value)
        for path, value in names_in_facade(mr.tf, "tf")
        if callable(value) and (getattr(value, "__module__", "mirrored") or "").startswith("mirrored")
    ]
    assert len(ours) > 700
    assert [path for path, value in ours if not own_summary(value)] == []


def names_in_facade(module: types.ModuleType, path: str) -> list[tuple[str, object]]:
    found = []
    for name in sorted(name for name in dir(module) if not name.startswith("_")):
        value = getattr(module, name)
        if not isinstance(value, types.ModuleType):
            found.append((f"{path}.{name}", value))
        elif value.__name__.startswith("mirrored.tf"):
            found += names_in_facade(value, f"{path}.{name}")
    return found


def own_summary(value: object) -> str:
    """The docstring of a value, but not that of its type."""
    text = inspect.getdoc(value) or ""
    return "" if not isinstance(value, type) and text == inspect.getdoc(type(value)) else text


def words_of(program: str, **environment: str) -> list[str]:
    """What a program prints in a process of its own."""
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=surroundings, capture_output=True, text=True, timeout=50, check=True
    ).stdout.split()


def test_dir_shows_modules_that_are_not_loaded_yet():
    assert set(words_of("import mirrored as mr; print(*dir(mr))")) >= NAMES | LAZY_MODULES


@pytest.mark.long
def test_importing_mirrored_leaves_jax_alone_until_a_name_needs_it():
    program = "import sys, mirrored as mr; print('jax' in sys.modules); mr.Variable; print('jax' in sys.modules)"
    assert words_of(program, MIRRORED_VIRTUAL_DEVICES="", MIRRORED_VIRTUAL_KIND="")[-2:] == ["False", "True"]


def test_importing_mirrored_makes_the_virtual_devices_of_the_environment():
    program = "import mirrored, jax; print(len(jax.devices('cpu')))"
    assert words_of(program, MIRRORED_VIRTUAL_DEVICES="3") == ["3"]


@pytest.mark.long
def test_names_first_asked_for_while_jax_traces_keep_no_tracer():
    program = """
import jax, sys, mirrored as mr
jax.jit(lambda x: [x, *(getattr(mr, name) is None for name in dir(mr))])(1.0)
kept = [(name, key) for name, module in sys.modules.items() if name.startswith("mirrored")
        for key, value in vars(module).items() if isinstance(value, jax.core.Tracer)]
print(len(kept), mr.function(lambda x: x + 1)(2.0))
"""
    assert words_of(program) == ["0", "3.0"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mirrored' has no attribute 'GradientTapes'"):
        _ = mr.GradientTapes


def test_every_package_is_documented():
    for name in ("analysis", "cli", "compilation", "runtime", "strategies", "tape", "topology", "values", "variables"):
        assert __import__(f"mirrored.{name}", fromlist=["_"]).__doc__


def test_former_names_are_not_served():
    with pytest.raises(AttributeError, match="has no attribute 'SynchronyError'"):
        _ = mr.errors.SynchronyError
    assert not hasattr(mr.MirroredStrategy(), "layout")
