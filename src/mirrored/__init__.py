"""Synchronous data-parallel training for JAX, with the programming model of MirroredStrategy and GradientTape."""

from __future__ import annotations

import importlib
from typing import Any

from mirrored import config

config.set_from_environment()

_MODULES = ("collectives", "config", "data", "errors", "losses", "optimizers", "testing", "tf")
_NAMES = {
    "DistributedValues": "mirrored.replicas.values",
    "Function": "mirrored.function",
    "GradientTape": "mirrored.tape",
    "Mirrored": "mirrored.replicas.values",
    "MirroredStrategy": "mirrored.strategies",
    "OneDeviceStrategy": "mirrored.strategies",
    "PerReplica": "mirrored.replicas.values",
    "ReduceOp": "mirrored.collectives.reduce_op",
    "ReplicaContext": "mirrored.strategies",
    "Strategy": "mirrored.strategies",
    "UnconnectedGradients": "mirrored.tape",
    "Variable": "mirrored.variables",
    "VariableAggregation": "mirrored.variables",
    "VariableSynchronization": "mirrored.variables",
    "custom_gradient": "mirrored.tape",
    "experimental_set_strategy": "mirrored.strategies",
    "function": "mirrored.function",
    "functions_run_eagerly": "mirrored.function",
    "get_replica_context": "mirrored.strategies",
    "get_strategy": "mirrored.strategies",
    "has_strategy": "mirrored.strategies",
    "in_cross_replica_context": "mirrored.strategies",
    "run_functions_eagerly": "mirrored.function",
    "stop_gradient": "mirrored.tape",
    "variable_creator_scope": "mirrored.variables",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
