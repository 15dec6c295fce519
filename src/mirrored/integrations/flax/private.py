"""The only module that uses private attributes of Flax: those of NNX, and of the batch statistics of Linen.

Supports Flax 0.12.7 to 0.12.12. A section holds what one part of NNX keeps private, and helpers that read and set
attributes of its objects. `tests/integrations/test_flax_private.py` checks each on the installed version. Methods that
mirrored replaces are named where they are replaced; `mirrored/patches.py` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirrored.extras import load

if TYPE_CHECKING:
    from flax.nnx import Pytree
    from flax.nnx import Variable as NNXVariable

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")
linen = load("flax.linen", called="mirrored.integrations.flax", extra="flax")

# Variables: their slot, which `variables.py` replaces by a property, and their metadata.

# The original descriptor.
raw_value_slot: Any = nnx.Variable.__dict__["_raw_value"]
# The original method, which `variables.py` wraps.
check_can_update: Any = nnx.Variable.__dict__["_check_can_update"]
# The type of the variables of metrics, which NNX exports from a submodule only.
MetricState: type = nnx.training.metrics.MetricState


def metadata_of(variable: NNXVariable[Any]) -> dict[str, Any]:
    """Returns an NNX variable's own metadata dict, unlike NNX's `get_metadata`, which returns a copy of the dict."""
    return variable._var_metadata


# Trace levels: the trace in which a module or variable was created.

# The module whose `current_jax_trace` returns the current trace level.
tracers: Any = nnx.tracers


def trace_of_variable(variable: NNXVariable[Any]) -> Any:
    """Returns the JAX trace in which an NNX variable was created."""
    return variable._trace_state.jax_trace


def trace_of_module(module: Pytree) -> Any:
    """Returns the JAX trace in which an NNX module was created."""
    return module._pytree__state.trace_state.jax_trace


def move_to_current_trace(module: Pytree) -> None:
    """Makes NNX regard a module as created in the current JAX trace, so that the module can be changed."""
    state = module._pytree__state
    object.__setattr__(module, "_pytree__state", type(state)(state.initializing, state.is_setup))


# Intermediate values: the attribute in which `nnx.capture` stores variables, and `Module.sow` appends to them.

CAPTURES = "__captures__"


# Random state: the functions that replace keys for a while, which `nnx.split_rngs` and `nnx.fork_rngs` call.

random_state: Any = nnx.rnglib
REPLACING = ("_graph_updates_split_rngs", "_graph_updates_fork_rngs")
RESTORING = ("restore_rngs",)

# Transforms: the module whose `from_tree` makes the modules that a transform returns.

results: Any = nnx.extract

# Transforms: the module whose `unflatten` sets the attributes of the modules that a transform got, from its results.

graphs: Any = nnx.graphlib

# Statistics: the modules whose `_compute_stats` computes the statistics of normalization layers, and that of metrics.

normalization: Any = nnx.nn.normalization
linen_normalization: Any = linen.normalization
metrics: Any = nnx.training.metrics


def canonical_axes(rank: int, axes: Any) -> tuple[int, ...]:
    """Returns the axes of a normalization layer's statistics as nonnegative indices without duplicates."""
    found: tuple[int, ...] = normalization._canonicalize_axes(rank, axes)
    return found
