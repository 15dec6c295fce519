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
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "PerReplica",
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
    "run_functions_eagerly",
    "stop_gradient",
    "unmirror",
    "variable_creator_scope",
}
# Loaded on first use, so that `import mirrored` stays quick.
LAZY_MODULES = {"checkpoint", "cluster", "collectives", "data", "losses", "optimizers", "testing", "tf"}


def test_public_names_are_these():
    assert set(mr.__all__) == NAMES
    assert mr.__all__ == sorted(mr.__all__)


@pytest.mark.parametrize("name", sorted(NAMES | LAZY_MODULES))
def test_public_name_is_there_and_documented(name):
    value = getattr(mr, name)
    assert value.__doc__
    if not isinstance(value, types.ModuleType):
        assert value.__module__.partition(".")[0] == "mirrored"


def test_dir_shows_modules_that_are_not_loaded_yet():
    program = "import mirrored as mr; print(' '.join(dir(mr)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True)
    assert set(shown.stdout.split()) >= NAMES | LAZY_MODULES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mirrored' has no attribute 'GradientTapes'"):
        _ = mr.GradientTapes


def test_every_package_is_documented():
    for name in ("cli", "function", "replicas", "strategies", "tape", "variables"):
        assert __import__(f"mirrored.{name}", fromlist=["_"]).__doc__
