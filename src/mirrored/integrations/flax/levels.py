"""Where NNX's objects were made: in the trace of a compiled function, in an eager run, or neither.

NNX notes the trace in which an object was made, and refuses changes in another one. The notes are marked here, so that
an object that was flattened in a compiled function may be changed again afterwards, and a variable without a strategy
is not changed by several replicas in turn.
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
    """NNX's idea of where it is, which a tape does not change: a tape watches what runs anyway."""

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
    """Allows changes outside of a module that a compiled function has flattened and unflattened.

    `nnx.value_and_grad` in a function does that with the model itself, in the function's trace. A module that keeps
    something of the trace is still refused.
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
    """Refuses a new value for a variable without a strategy in an eager run of several replicas.

    Raises:
        ContextError: It was not made in this run.
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
        found=f"a new value, in strategy.run, for an nnx.{kind} that was made outside of strategy.scope()",
        rule="it has no copies: the replicas would change it one after another, each by its own part of the batch",
        remedy="make the model inside `with strategy.scope():`, or put it on variables: mirrored.mirror(model)",
    )
