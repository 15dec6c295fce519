"""Creates and reads the `mirrored` variables that store the values of NNX variables.

The class of the NNX variable, such as `nnx.Param`, decides which kind of `mirrored` variable is created.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp

from mirrored._blocks import setting
from mirrored._jax.traces import (
    Tracer,
    current_trace,
    eager,
    is_eval,
    is_eval_below,
    put_trace,
    trace_below_tapes,
)
from mirrored._typing import Array, HostArray
from mirrored.errors import ContextError
from mirrored.extras import load
from mirrored.integrations.flax.private import (
    CAPTURES,
    MetricState,
    metadata_of,
    move_to_current_trace,
    raw_value_slot,
    trace_of_module,
    trace_of_variable,
)
from mirrored.integrations.flax.random_state import ReplicaKey, borrowed
from mirrored.integrations.trees import belongs_here, is_array, statistic_of
from mirrored.runtime.ambient import ambient, within
from mirrored.variables import Variable, VariableAggregation

if TYPE_CHECKING:
    from flax.nnx import Pytree, State
    from flax.nnx import Variable as NNXVariable

# Names the variables that back NNX variables by their known path in the module.

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


def name_by_path(attribute: str, value: object) -> None:
    """Names the variables in a new attribute of a module by their path, such as ``kernel`` or ``inner/kernel``.

    Args:
        attribute: The attribute's name.
        value: The attribute: an NNX variable or a module. Other values are ignored.
    """
    for path, variable in variables_of(value):
        content = held(variable)
        owner = content.variable if isinstance(content, ReplicaKey) else content
        if isinstance(owner, Variable):
            owner.name = "/".join([attribute, *map(str, path)])


def variables_of(value: object) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """Returns (path, variable) pairs for the NNX variables in a module, or for a single NNX variable."""
    if isinstance(value, nnx.Variable):
        return [((), value)]
    return variables_in_state(nnx.state(value)) if isinstance(value, nnx.Pytree) else ()


def variables_in_state(state: State[Any, Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns (path, variable) pairs for the NNX variables in a state; omits plain arrays."""
    return [(path, leaf) for path, leaf in nnx.to_flat_state(state) if isinstance(leaf, nnx.Variable)]


# Trace levels of NNX objects: created in the trace of a compiled function, in an eager run, or neither.
#
# NNX stores with each object the trace in which it was created, and rejects changes under another trace. This module
# adds to that record whether the trace belongs to a compiled function or to an eager run, and to which of its replicas.
# So an object that a compiled function has flattened can be changed again afterwards, and several replicas cannot
# change a module, or a variable without a strategy, one after another.


def below_tapes(trace_state: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps NNX's `current_jax_trace` function to ignore the traces of gradient tapes.

    A tape only records operations, so it is not a trace level of its own for NNX.
    """

    @functools.wraps(trace_state)
    def below() -> Any:
        trace = current_trace()
        parent = trace_below_tapes(trace)
        if parent is trace or parent is None:
            return _marked(trace_state(), trace)
        try:
            put_trace(parent)
            return _marked(trace_state(), parent)
        finally:
            put_trace(trace)

    return below


def _marked(state: Any, trace: object) -> Any:
    here = ambient()
    if here.store is not None and here.store.captures:
        state.of_function = trace is here.store.base_trace
    elif here.store is not None and here.runner is not None:
        state.run = weakref.ref(here.runner)
        state.replica = None if here.replica is None else here.replica.local_index
    elif (strategy := strategy_of_scope()) is not None and is_eval(trace):
        state.scope = weakref.ref(strategy)
    return state


def strategy_of_scope() -> Any:
    """Returns the strategy whose scope is open; None without a scope, inside `run`, or in a compiled function."""
    here = ambient()
    if not here.strategies or here.replica is not None or here.store is not None:
        return None
    strategy = here.strategies[-1]
    return strategy if strategy.device_assignment is not None else None


def renew(module: Pytree) -> None:
    """Makes an NNX module mutable again after a compiled function has flattened and unflattened it.

    `nnx.value_and_grad` in a compiled function does that with the model itself, so NNX records the function's trace as
    the trace in which the model was created. Changes to a module that still holds a tracer are rejected.
    """
    here = ambient()
    if not getattr(trace_of_module(module), "of_function", False):
        return
    outside = here.store is None or not here.store.captures
    if outside and is_eval(trace_below_tapes(current_trace())) and not any(map(_is_traced, vars(module).values())):
        move_to_current_trace(module)


def _is_traced(value: object) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda one: isinstance(one, (nnx.Variable, nnx.Pytree)))
    return any(isinstance(held(one) if isinstance(one, nnx.Variable) else one, Tracer) for one in leaves)


def refuse_per_replica_assignment(variable: NNXVariable[Any]) -> None:
    """Raises an error if replicas of an eager `run` assign an NNX variable that was created without a strategy.

    Raises:
        ContextError: The variable was not created in this run.
    """
    if not _is_shared_by_replicas(trace_of_variable(variable)):
        return
    kind, content = type(variable).__name__, held(variable)
    if not is_array(content):
        raise not_one_array_error(variable)
    raise ContextError(
        f"nnx.{kind}.set_value",
        found=f"strategy.run assigns a new value to an nnx.{kind} that was created outside strategy.scope()",
        rule="only a variable of the strategy can be assigned in strategy.run: this one has no per-replica copies, so "
        "each replica in turn would change it by its own part of the batch",
        remedy="create the model inside `with strategy.scope():`, or convert it: mirrored.mirror(model)",
    )


def refuse_change(module: Pytree, name: str, value: object) -> None:
    """Raises an error if replicas of an eager `run` add, replace or delete a variable or module in an attribute.

    Args:
        module: The module.
        name: The attribute's name.
        value: The attribute's new value, or `DELETED`.

    Raises:
        ContextError: The module was not created by this replica.
    """
    before = vars(module).get(name)
    if before is value or not _is_shared_by_replicas(trace_of_module(module)):
        return
    old, new = _first_object(before), _first_object(value)
    if old is None and new is None:
        return
    # Each replica in `nnx.capture` adds and deletes its own, but another one may still have to delete its own.
    is_capture = name == CAPTURES
    if is_capture and (value is DELETED or old is None or not _is_of_another_replica(trace_of_variable(old))):
        return
    verb = "adds" if old is None else "deletes" if value is DELETED else "replaces"
    kind, changed = type(module).__name__, type(new if old is None else old).__name__
    remedy = f"assign the values of variables (model.layer.bias[...] = new), or {verb[:-1]} it outside strategy.run"
    if old is None or is_capture:
        remedy = (
            "return intermediate values from __call__, instead of Module.sow or nnx.capture; "
            "add variables and layers outside strategy.run"
        )
    raise ContextError(
        f"{'deleting' if value is DELETED else 'setting'} {kind}.{name}",
        found=f"a replica in strategy.run {verb} the {changed} in the attribute {name!r}",
        rule="the replicas share one model: each in turn would change it, and find the changes of those before it",
        remedy=remedy,
    )


def _first_object(value: object) -> Any:
    """Returns the first variable or module that an attribute's value contains, or None."""
    if isinstance(value, dataclasses.Field):  # `nnx.data`
        value = value.metadata.get("nnx_value")
    objects = (nnx.Variable, nnx.Pytree)
    leaves = jax.tree.leaves(value, is_leaf=lambda one: isinstance(one, objects))
    return next((leaf for leaf in leaves if isinstance(leaf, objects)), None)


def _is_shared_by_replicas(made_in: object) -> bool:
    """Returns whether the caller is one of several replicas of an eager run, and another one may use the same object.

    Args:
        made_in: The record of the trace in which the object was created.
    """
    here = ambient()
    if here.replica is None or here.store is None or here.store.captures or here.replica.num_replicas_in_sync == 1:
        return False
    run = getattr(made_in, "run", None)
    return run is None or run() is not here.runner or _is_of_another_replica(made_in)


def _is_of_another_replica(made_in: object) -> bool:
    """Returns whether another replica of this run has created an object."""
    here = ambient()
    run = getattr(made_in, "run", None)
    if here.replica is None or run is None or run() is not here.runner:
        return False
    return getattr(made_in, "replica", None) not in (None, here.replica.local_index)


def not_one_array_error(variable: NNXVariable[Any]) -> ContextError:
    """Returns the error for a run that would assign an NNX variable whose value is a pytree."""
    kind = type(variable).__name__
    remedy = f"store one array per nnx.{kind} of a model that is created inside `with strategy.scope():`"
    if isinstance(variable, nnx.Intermediate):
        remedy = "return intermediate values from __call__, instead of calling Module.sow"
    return ContextError(
        f"nnx.{kind}.set_value",
        found=f"strategy.run assigns a new value to an nnx.{kind} that holds a {type(held(variable)).__name__}",
        rule="only a variable of the strategy can be assigned in strategy.run, and it holds one array",
        remedy=remedy,
    )


MIRRORED_KEY: Final = "mirrored_key"
"""Marks, in the metadata of an NNX variable that is no random state of NNX, that it holds random keys of a strategy.

Copies of the variable keep the metadata: the ones that `nnx.grad` makes hold plain keys.
"""

DELETED: Final = object()
"""The new value of an attribute that is deleted, for `refuse_change`."""

UNSET: Final = object()
"""What `held` returns for an NNX variable that its constructor has not given a content yet."""


def held(variable: NNXVariable[Any]) -> Any:
    """Returns the raw content of an NNX variable: a `mirrored.Variable`, a `ReplicaKey`, or a plain value."""
    try:
        return raw_value_slot.__get__(variable)
    except AttributeError:
        return UNSET


def hold(variable: NNXVariable[Any], value: object) -> None:
    """Stores an object as the raw content of an NNX variable."""
    raw_value_slot.__set__(variable, value)


def is_ours(content: object) -> bool:
    """Returns whether the raw content of an NNX variable is a `mirrored.Variable` or a `ReplicaKey`."""
    return isinstance(content, (Variable, ReplicaKey))


def value_of(content: Variable | ReplicaKey) -> Any:
    """Returns the value of the `mirrored` variable that backs an NNX variable, even inside `nnx.grad`.

    In eager NNX transforms (`nnx.grad`, `nnx.vmap`) the value is read eagerly and becomes a constant of their trace.
    That is safe: they flatten and copy the model while they run and do not reuse the trace, so the constant cannot
    become stale.
    """
    if (random_state := borrowed(content)) is not None:
        return random_state
    here = ambient()
    captured = bool(here.listeners) or (here.store is not None and here.store.captures)
    if captured or is_eval(current_trace()) or not is_eval_below(current_trace()):
        return content.read_value()
    with eager():
        return content.read_value()


def plain(variable: object) -> Any:
    """Returns a new NNX variable with the current value of `variable`, without a `mirrored` variable behind it."""
    if not isinstance(variable, nnx.Variable):
        return variable
    content = held(variable)
    metadata = {name: value for name, value in variable.get_metadata().items() if name != MIRRORED_KEY}
    return type(variable).from_metadata(value_of(content) if is_ours(content) else content, metadata)


def is_nested() -> bool:
    """Returns whether the caller is inside a JAX transform such as `jax.grad`.

    Gradient tapes and compiled functions of `mirrored` do not count as JAX transforms.
    """
    trace, store = trace_below_tapes(current_trace()), ambient().store
    return trace is not store.base_trace if store is not None and store.captures else not is_eval(trace)


def adopt(variable: NNXVariable[Any], name: str = "") -> None:
    """Moves the value of an NNX variable to a new `mirrored` variable of the current strategy."""
    content = held(variable)
    if is_ours(content):
        owner = content.variable if isinstance(content, ReplicaKey) else content
        if belongs_here(owner):
            return
        content, name = content.read_value(), owner.name
    is_key = isinstance(content, jax.Array) and jnp.issubdtype(content.dtype, jax.dtypes.prng_key)
    if variable.hijax or not (is_key or is_array(content)):
        return
    # The replicas update the state of an optimizer alike, so its keys are an ordinary mirrored variable.
    is_own_key = is_key and not isinstance(variable, nnx.OptState)
    if is_own_key and not isinstance(variable, nnx.RngState):
        metadata_of(variable)[MIRRORED_KEY] = True
    # Without a replica: NNX objects are shared by all replicas, so the first replica creates the variable for all.
    with within(replica=None, runner=None):
        hold(variable, ReplicaKey(content, name) if is_own_key else _made(variable, content, name))


def adopt_made_in_scope(value: object) -> None:
    """Creates a `mirrored` variable for each NNX variable in `value` that was created in the current scope.

    `nnx.vmap` and `nnx.jit` make the variables of a module in their trace, where no `mirrored` variable can be created,
    and then anew from the arrays that they return.

    Args:
        value: A module or an NNX variable. Variables that were created elsewhere, and other values, are left alone.
    """
    strategy = strategy_of_scope()
    if strategy is None or not is_eval(trace_below_tapes(current_trace())):
        return
    for path, variable in variables_of(value):
        made_in = getattr(trace_of_variable(variable), "scope", None)
        if made_in is not None and made_in() is strategy:
            adopt(variable, "/".join(map(str, path)))


# Metrics and layers whose state is mirrored instead of one component per replica.

_mirrors_statistics: contextvars.ContextVar[bool] = contextvars.ContextVar("_mirrors_statistics", default=False)
# The name in the metadata of an NNX variable, which copies of the variable keep.
_MIRRORED_STATISTIC: Final = "mirrored_statistic"


def mirrored_statistics() -> AbstractContextManager[None]:
    """Context manager in which newly created metrics and layers store their states in `mirrored` variables."""
    return setting(_mirrors_statistics, True)


def _made(variable: NNXVariable[Any], value: Array | HostArray, name: str) -> Variable:
    name = name or type(variable).__name__
    if isinstance(variable, (MetricState, nnx.BatchStat)):
        metadata = metadata_of(variable)
        if _mirrors_statistics.get() or _MIRRORED_STATISTIC in metadata:
            metadata[_MIRRORED_STATISTIC] = True
            return Variable(value, trainable=False, name=name)
    if isinstance(variable, MetricState):
        return statistic_of(value, name, VariableAggregation.SUM)
    trainable = isinstance(variable, nnx.Param)
    shared = trainable or isinstance(variable, (nnx.OptState, nnx.RngState))
    if shared or not jnp.issubdtype(value.dtype, jnp.floating):
        return Variable(value, trainable=trainable, name=name)
    return statistic_of(value, name)
