"""Access to the variables that back NNX variables, and their creation by the type of the NNX variable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.traces import current_trace, eager, is_eval, is_eval_below, recording_parent
from mirrored.extras import load
from mirrored.integrations.flax.keys import ReplicaKey
from mirrored.integrations.trees import belongs_here, is_array, statistic_of
from mirrored.runtime.ambient import ambient, within
from mirrored.variables import Variable, VariableAggregation

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")
# The original slot descriptor: the module `variables` replaces the class attribute with a property.
_slot: Any = nnx.Variable.__dict__["_raw_value"]
_UNSET = object()


def held(variable: Any) -> Any:
    """Returns the content of an NNX variable's slot: a backing `Variable` or `ReplicaKey`, or the plain value."""
    try:
        return _slot.__get__(variable)
    except AttributeError:
        return _UNSET


def hold(variable: Any, value: Any) -> None:
    """Sets the content of an NNX variable's slot."""
    _slot.__set__(variable, value)


def is_ours(content: Any) -> bool:
    """Whether a slot's content is a backing `Variable` or `ReplicaKey`."""
    return isinstance(content, (Variable, ReplicaKey))


def value_of(content: Any) -> Any:
    """Returns the value of a backing variable, also inside NNX transforms (`nnx.grad`, `nnx.vmap`) in eager code.

    In these transforms the value is read eagerly and becomes a constant of their trace. That is safe: they flatten and
    copy the model while they run and do not reuse the trace, so the constant cannot become stale.
    """
    here = ambient()
    captured = bool(here.listeners) or (here.store is not None and here.store.captures)
    if captured or is_eval(current_trace()) or not is_eval_below(current_trace()):
        return content.read_value()
    with eager():
        return content.read_value()


def is_nested() -> bool:
    """Whether a JAX transform is active above the trace in which variables can be assigned."""
    trace, store = recording_parent(current_trace()), ambient().store
    return trace is not store.base_trace if store is not None and store.captures else not is_eval(trace)


def adopt(variable: Any, name: str = "") -> None:
    """Moves the value of an NNX variable to a new backing variable of the current strategy."""
    content = held(variable)
    if is_ours(content):
        owner = content.variable if isinstance(content, ReplicaKey) else content
        if belongs_here(owner):
            return
        content, name = content.read_value(), owner.name
    is_key = isinstance(content, jax.Array) and jnp.issubdtype(content.dtype, jax.dtypes.prng_key)
    if variable.hijax or not (is_key or is_array(content)):
        return
    # Without a replica: NNX objects are shared by all replicas, so the first replica creates the variable for all.
    with within(replica=None, runner=None):
        hold(variable, ReplicaKey(content, name) if is_key else _made(variable, content, name))


def _made(variable: Any, value: Any, name: str) -> Variable:
    name = name or type(variable).__name__
    if isinstance(variable, nnx.metrics.MetricState):
        return statistic_of(value, name, VariableAggregation.SUM)
    trainable = isinstance(variable, nnx.Param)
    shared = trainable or isinstance(variable, nnx.optimizer.OptState) or isinstance(variable, nnx.RngState)
    if shared or not jnp.issubdtype(value.dtype, jnp.floating):
        return Variable(value, trainable=trainable, name=name)
    return statistic_of(value, name)
