"""Pins the public names: one that goes or comes is a decision, not an accident."""

from __future__ import annotations

import os
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


def words_of(program: str, **environment: str) -> list[str]:
    """What a program prints in a process of its own."""
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=surroundings, capture_output=True, text=True, timeout=50, check=True
    ).stdout.split()


def test_dir_shows_modules_that_are_not_loaded_yet():
    assert set(words_of("import mirrored as mr; print(*dir(mr))")) >= NAMES | LAZY_MODULES


def test_importing_mirrored_leaves_jax_alone_until_a_name_needs_it():
    program = "import sys, mirrored as mr; print('jax' in sys.modules); mr.Variable; print('jax' in sys.modules)"
    assert words_of(program, MIRRORED_VIRTUAL_DEVICES="", MIRRORED_VIRTUAL_KIND="")[-2:] == ["False", "True"]


def test_importing_mirrored_makes_the_virtual_devices_of_the_environment():
    program = "import mirrored, jax; print(len(jax.devices('cpu')))"
    assert words_of(program, MIRRORED_VIRTUAL_DEVICES="3") == ["3"]


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
