"""Which variable of ours an NNX variable lives on, by its type."""

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
# The slot itself, below the property that `variables` puts over it.
_slot: Any = nnx.Variable.__dict__["_raw_value"]
_UNSET = object()


def held(variable: Any) -> Any:
    """What an NNX variable's slot holds: a `Variable` or `ReplicaKey` of ours, or its plain value."""
    try:
        return _slot.__get__(variable)
    except AttributeError:
        return _UNSET


def hold(variable: Any, value: Any) -> None:
    """Puts something into the slot."""
    _slot.__set__(variable, value)


def is_ours(content: Any) -> bool:
    """Whether the slot's content is a variable of ours."""
    return isinstance(content, (Variable, ReplicaKey))


def value_of(content: Any) -> Any:
    """The value of a variable of ours, also under `nnx.grad`, `nnx.vmap` and the like outside compiled functions.

    These take a model apart and copy it while they run, not to be run again, so nothing stale can be baked in.
    """
    here = ambient()
    captured = bool(here.listeners) or (here.store is not None and here.store.captures)
    if captured or is_eval(current_trace()) or not is_eval_below(current_trace()):
        return content.read_value()
    with eager():
        return content.read_value()


def is_nested() -> bool:
    """Whether a JAX transform runs here, on top of what variables may be assigned in."""
    trace, store = recording_parent(current_trace()), ambient().store
    return trace is not store.base_trace if store is not None and store.captures else not is_eval(trace)


def adopt(variable: Any, name: str = "") -> None:
    """Moves the value of an NNX variable onto a variable of the strategy in force; it then lives there."""
    content = held(variable)
    if is_ours(content):
        owner = content.variable if isinstance(content, ReplicaKey) else content
        if belongs_here(owner):
            return
        content, name = content.read_value(), owner.name
    is_key = isinstance(content, jax.Array) and jnp.issubdtype(content.dtype, jax.dtypes.prng_key)
    if variable.hijax or not (is_key or is_array(content)):
        return
    # Inside a replica the first one does it, for all.
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
