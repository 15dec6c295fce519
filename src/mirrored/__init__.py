"""Synchronous data-parallel training for JAX, with the programming model of MirroredStrategy and GradientTape."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrored import settings
from mirrored.runtime.hooks import set_bridges, set_distributors, set_summary

if TYPE_CHECKING:  # what `__getattr__` loads: type checkers know these names and no others
    from mirrored import checkpoint as checkpoint
    from mirrored import cluster as cluster
    from mirrored import collectives as collectives
    from mirrored import config as config
    from mirrored import data as data
    from mirrored import elastic as elastic
    from mirrored import errors as errors
    from mirrored import losses as losses
    from mirrored import optimizers as optimizers
    from mirrored import testing as testing
    from mirrored import tf as tf
    from mirrored._core import *
    from mirrored.cluster import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from mirrored.data.input_options import InputContext as InputContext
    from mirrored.data.input_options import InputOptions as InputOptions
    from mirrored.data.input_options import InputReplicationMode as InputReplicationMode
    from mirrored.gradients import GradientAccumulator as GradientAccumulator
    from mirrored.gradients import aggregate_gradients as aggregate_gradients
    from mirrored.integrations.trees import assign as assign
    from mirrored.integrations.trees import mirror as mirror
    from mirrored.integrations.trees import unmirror as unmirror
    from mirrored.progress import Progress as Progress
    from mirrored.progress import progress as progress

    __version__: str


def _lazily(module: str, name: str) -> Callable[..., Any]:
    """Returns a wrapper of a module's function `name`; the module is imported only when the wrapper is called."""
    return lambda *args: getattr(importlib.import_module(module), name)(*args)


settings.check()
if settings.VIRTUAL_DEVICES.is_set() or settings.VIRTUAL_KIND.is_set():
    # Virtual devices must be set before the first JAX operation. Otherwise JAX is not imported until a name needs it.
    importlib.import_module("mirrored.config").set_from_environment()
if "keras" not in sys.modules and not os.environ.get("KERAS_BACKEND"):
    os.environ["KERAS_BACKEND"] = "jax"  # for a later `import keras`, whose default backend is TensorFlow
set_distributors(
    dataset=_lazily("mirrored.data", "distribute_dataset"),
    from_function=_lazily("mirrored.data", "distribute_from_function"),
    dataset_iterator=_lazily("mirrored.data.legacy", "make_dataset_iterator"),
    input_fn_iterator=_lazily("mirrored.data.legacy", "make_input_fn_iterator"),
)
set_summary(lambda: importlib.import_module("mirrored.tf").summary)
set_bridges(
    {
        "flax.nnx": "mirrored.integrations.flax",
        "flax.linen": "mirrored.integrations.flax",
        "keras.src.backend.jax": "mirrored.integrations.keras",
    },
    roots={"flax.nnx": "flax.nnx", "flax.linen": "flax.linen", "keras": "keras.src.backend.jax"},
)

_MODULES = (
    "checkpoint",
    "cluster",
    "collectives",
    "config",
    "data",
    "elastic",
    "errors",
    "losses",
    "optimizers",
    "testing",
    "tf",
)
_LAZY = {
    "GradientAccumulator": "mirrored.gradients",
    "InputContext": "mirrored.data.input_options",
    "InputOptions": "mirrored.data.input_options",
    "InputReplicationMode": "mirrored.data.input_options",
    "MultiWorkerMirroredStrategy": "mirrored.cluster",
    "aggregate_gradients": "mirrored.gradients",
    "assign": "mirrored.integrations.trees",
    "mirror": "mirrored.integrations.trees",
    "Progress": "mirrored.progress",
    "progress": "mirrored.progress",
    "unmirror": "mirrored.integrations.trees",
}


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts every name

    def __getattr__(name: str) -> Any:
        """Imports a public name when it is first accessed; all names of the module `_core` are imported together."""
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name == "__version__":
            return importlib.metadata.version(__name__)
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        if name in __all__:
            core = importlib.import_module("mirrored._core")
            globals().update({each: vars(core)[each] for each in __all__ if each in vars(core)})
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(types.ModuleType):
    """The module type of `mirrored`, in which no submodule can replace a public function or class of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _MODULES and name in __all__ and isinstance(value, types.ModuleType):
            return
        super().__setattr__(name, value)


def __dir__() -> list[str]:
    """Returns the public names, including modules that are not imported yet."""
    special = {name for name in globals() if name.startswith("__") and name.endswith("__")}
    return sorted({*special, *__all__, *_MODULES, "__version__"})


__all__ = [
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
]

sys.modules[__name__].__class__ = _Package
