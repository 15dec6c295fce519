"""Synchronous data-parallel training for JAX, with the programming model of MirroredStrategy and GradientTape."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mirrored import config as config
from mirrored import errors as errors
from mirrored.collectives.reduce_op import ReduceOp as ReduceOp
from mirrored.function import Function as Function
from mirrored.function import function as function
from mirrored.function import functions_run_eagerly as functions_run_eagerly
from mirrored.function import run_functions_eagerly as run_functions_eagerly
from mirrored.replicas.values import DistributedValues as DistributedValues
from mirrored.replicas.values import Mirrored as Mirrored
from mirrored.replicas.values import PerReplica as PerReplica
from mirrored.strategies import MirroredStrategy as MirroredStrategy
from mirrored.strategies import OneDeviceStrategy as OneDeviceStrategy
from mirrored.strategies import ReplicaContext as ReplicaContext
from mirrored.strategies import Strategy as Strategy
from mirrored.strategies import experimental_set_strategy as experimental_set_strategy
from mirrored.strategies import get_replica_context as get_replica_context
from mirrored.strategies import get_strategy as get_strategy
from mirrored.strategies import has_strategy as has_strategy
from mirrored.strategies import in_cross_replica_context as in_cross_replica_context
from mirrored.strategies.distribution import set_distributors
from mirrored.strategies.frameworks import set_bridges
from mirrored.tape import GradientTape as GradientTape
from mirrored.tape import UnconnectedGradients as UnconnectedGradients
from mirrored.tape import custom_gradient as custom_gradient
from mirrored.tape import stop_gradient as stop_gradient
from mirrored.variables import Variable as Variable
from mirrored.variables import VariableAggregation as VariableAggregation
from mirrored.variables import VariableSynchronization as VariableSynchronization
from mirrored.variables import variable_creator_scope as variable_creator_scope


def _from_data(name: str) -> Callable[[Any, Any, Any], Any]:
    """A function of `mirrored.data`, which is imported when it is first called."""
    return lambda *args: getattr(importlib.import_module("mirrored.data"), name)(*args)


config.set_from_environment()
set_distributors(
    dataset=_from_data("distribute_dataset"),
    from_function=_from_data("distribute_from_function"),
    dataset_iterator=_from_data("make_dataset_iterator"),
    input_fn_iterator=_from_data("make_input_fn_iterator"),
)
set_bridges({"flax.nnx": "mirrored.integrations.flax", "keras.src.backend.jax": "mirrored.integrations.keras"})

_MODULES = ("checkpoint", "cluster", "collectives", "data", "losses", "optimizers", "testing", "tf")
_LAZY = {
    "GradientAccumulator": "mirrored.gradients",
    "MultiWorkerMirroredStrategy": "mirrored.cluster",
    "aggregate_gradients": "mirrored.gradients",
    "assign": "mirrored.integrations.trees",
    "mirror": "mirrored.integrations.trees",
    "unmirror": "mirrored.integrations.trees",
}


def __getattr__(name: str) -> Any:
    """Imports the optional parts on first use."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, modules that are not loaded yet included."""
    return sorted({*globals(), *_MODULES, *_LAZY})


__all__ = [
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
]
