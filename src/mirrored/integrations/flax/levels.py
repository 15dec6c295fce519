"""Trace levels of NNX objects: created in the trace of a compiled function, in an eager run, or neither.

NNX stores with each object the trace in which it was created, and rejects changes under another trace. This module adds
to that record whether the trace belongs to a compiled function or to an eager run. So an object that a compiled
function has flattened can be changed again afterwards, and several replicas cannot change a variable without a strategy
one after another.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax

from mirrored._jax.traces import current_trace, is_eval, is_tracer, put_trace, recording_parent, swap_trace
from mirrored.errors import ContextError
from mirrored.extras import load
from mirrored.integrations.flax.holding import held
from mirrored.runtime.ambient import ambient

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


def below_tapes(trace_state: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps NNX's function for the current trace to return the trace below all tapes.

    A tape only records operations, so it is not a trace level of its own for NNX.
    """

    @functools.wraps(trace_state)
    def below() -> Any:
        trace = current_trace()
        parent = recording_parent(trace)
        if parent is trace or parent is None:
            return _marked(trace_state(), trace)
        swap_trace(parent)
        try:
            return _marked(trace_state(), parent)
        finally:
            put_trace(trace)

    return below


def _marked(state: Any, trace: Any) -> Any:
    here = ambient()
    if here.store is not None and here.store.captures:
        state.of_function = trace is here.store.base_trace
    elif here.store is not None and here.runner is not None:
        state.run = weakref.ref(here.runner)
    return state


def renew(module: Any) -> None:
    """Allows changes to a module outside the compiled function that has flattened and unflattened it.

    `nnx.value_and_grad` in a compiled function does that with the model itself, so NNX records the function's trace as
    the trace in which the model was created. Changes to a module that still holds a tracer are rejected.
    """
    state = module._pytree__state
    here = ambient()
    if not getattr(state.trace_state.jax_trace, "of_function", False):
        return
    outside = here.store is None or not here.store.captures
    if outside and is_eval(recording_parent(current_trace())) and not any(map(_is_traced, vars(module).values())):
        made = type(state)(state.initializing, state.is_setup)
        object.__setattr__(module, "_pytree__state", made)


def _is_traced(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda one: isinstance(one, (nnx.Variable, nnx.Pytree)))
    return any(is_tracer(held(one) if isinstance(one, nnx.Variable) else one) for one in leaves)


def refuse_in_turn(variable: Any) -> None:
    """Raises if an eager run of several replicas assigns an NNX variable without a strategy.

    Raises:
        ContextError: The variable was not created in this run.
    """
    here = ambient()
    if here.replica is None or here.store is None or here.store.captures or here.replica.num_replicas_in_sync == 1:
        return
    made_in = getattr(variable._trace_state.jax_trace, "run", None)
    if made_in is not None and made_in() is here.runner:
        return
    kind = type(variable).__name__
    raise ContextError(
        f"nnx.{kind}.set_value",
        found=f"a new value, in strategy.run, for an nnx.{kind} that was created outside strategy.scope()",
        rule="it has no per-replica copies: each replica in turn would change it by its own part of the batch",
        remedy="create the model inside `with strategy.scope():`, or convert it: mirrored.mirror(model)",
    )
