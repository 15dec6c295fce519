"""Reading and writing a variable in each context: the table of `rules`, as code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import current_trace, eager, is_eval, is_tracer, recording_parent
from mirrored.collectives.stacked import reduce_stacked
from mirrored.errors import ContextError, TransformError, VariableError
from mirrored.replicas.ambient import Ambient, ambient
from mirrored.replicas.frames import Frame
from mirrored.replicas.merging import Merge, Session
from mirrored.replicas.values import LocalPerReplica, Mirrored, PerReplica, stack_components
from mirrored.variables.rules import VariableAggregation, reduction_of

Combine = Callable[[Any, Any], Any]


# Placement


def placed(value: Any, layout: Any, per_replica: bool) -> jax.Array:
    """A concrete value in the form in which a variable stores it, whatever is being traced."""
    with eager():
        if layout is None:
            return jnp.asarray(value)
        if per_replica:
            return jax.device_put(jnp.broadcast_to(value, (layout.num_replicas, *np.shape(value))), layout.sharded)
        return jax.device_put(value, layout.replicated)


def components(whole: jax.Array, layout: Any, per_replica: bool) -> tuple[Any, ...]:
    """A stored value's components, one per replica, each on its replica's device."""
    by_device = {shard.device: shard.data for shard in whole.addressable_shards}
    shards = [by_device[device] for device in layout.devices]
    local = layout.local
    if per_replica:
        return tuple(shard[k] for shard in shards for k in range(local))
    return tuple(shard for shard in shards for _ in range(local))


def _aligned(variable: Any, value: Any) -> Any:
    """A concrete value on all devices of the variable, so that it can be combined with what is there."""
    layout = variable.layout
    if layout is None or not isinstance(value, jax.Array) or is_tracer(value) or not value.committed:
        return value
    return value if value.sharding.device_set == set(layout.devices) else jax.device_put(value, layout.replicated)


def _near(value: Any, other: Any) -> Any:
    """A concrete value on the one device of another, so that they can be combined."""
    if other is None or not isinstance(value, jax.Array) or is_tracer(value) or not value.committed:
        return value
    return value if value.sharding.device_set == other.sharding.device_set else jax.device_put(value, other.device)


# Contexts


def frame_of(variable: Any, here: Ambient) -> Frame | None:
    """Where `variable` is read and written in this context; None is its storage.

    A plain variable used by an eager run is shared by the replicas, which run one after another: it has no copies to
    stage.
    """
    frame = here.frame
    if frame is not None and not frame.captures and variable.layout is None:
        return None
    return frame


def _check_strategy(variable: Any, here: Ambient, called: str) -> None:
    if variable.layout is None or not here.strategies or variable.strategy is here.strategies[-1]:
        return
    raise ContextError(
        called,
        found=f"variable {variable.name!r} belongs to {variable.strategy!r}, this code to {here.strategies[-1]!r}",
        rule="a run or scope uses variables of its own strategy (and plain ones)",
        remedy="make the variable in the scope of the strategy that uses it",
    )


def _check_read(variable: Any, frame: Frame | None, here: Ambient) -> None:
    if here.listeners or (frame is not None and frame.captures) or is_eval(recording_parent(current_trace())):
        return
    raise TransformError(
        f"reading {variable.name}",
        found=f"the value of variable {variable.name!r} was read under a JAX transform ({_transform()})",
        rule="a transform outside mirrored.function and GradientTape would bake the value in as a constant",
        remedy="use mirrored.function in place of jax.jit and GradientTape in place of jax.grad, "
        "or pass variable.read_value() as an argument",
    )


def _check_write(variable: Any, frame: Frame | None, called: str) -> None:
    trace = recording_parent(current_trace())
    if trace is frame.base_trace if frame is not None and frame.captures else is_eval(trace):
        return
    raise TransformError(
        called,
        found=f"variable {variable.name!r} was assigned under a JAX transform ({_transform()})",
        rule="an assignment inside jit, grad, scan, cond or vmap would happen once while tracing, "
        "not when the program runs",
        remedy="return the new value from the transformed function and assign it outside",
    )


def check_assignable(variable: Any, called: str) -> None:
    """Refuses an assignment under a transform that would do it while tracing only."""
    _check_write(variable, frame_of(variable, ambient()), called)


def _transform() -> str:
    return type(recording_parent(current_trace())).__name__.removesuffix("Trace")


# Reading


def read(variable: Any) -> Any:
    """The value as the current context sees it."""
    here = ambient()
    frame = frame_of(variable, here)
    _check_read(variable, frame, here)
    if not variable.per_replica:
        if frame is None:
            value = variable.stored()
            shared = here.runner is not None and here.replica is not None
            return here.runner.component(value, here.replica.local_index) if shared else value
        if here.replica is None:
            return frame.whole(variable)
        _check_strategy(variable, here, f"reading {variable.name}")
        return frame.local(variable, here.replica.local_index)
    if here.replica is not None:
        index = here.replica.local_index
        return frame.local(variable, index) if frame is not None else variable.stored_component(index)
    return _aggregate(variable, frame, here)


def eager_replica(variable: Any) -> int | None:
    """The replica of an eager run, for a sync-on-read variable: there an assignment gives the component itself."""
    here = ambient()
    eager_run = here.replica is not None and here.frame is not None and not here.frame.captures
    return here.replica.local_index if eager_run and variable.per_replica else None


def component(variable: Any, replica: int) -> Any:
    """One replica's component, without aggregation."""
    here = ambient()
    frame = frame_of(variable, here)
    _check_read(variable, frame, here)
    if frame is None:
        return variable.stored_component(replica)
    if here.replica is not None and here.replica.local_index == replica:
        return frame.local(variable, replica)
    whole = frame.whole(variable)
    return whole[replica] if variable.per_replica else whole


def _aggregate(variable: Any, frame: Frame | None, here: Ambient) -> Any:
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"reading {variable.name}",
            found=f"sync-on-read variable {variable.name!r} with aggregation NONE, in cross-replica context",
            rule="outside run a sync-on-read variable is read as one value, so its components must be aggregated",
            remedy="give aggregation=VariableAggregation.SUM (or MEAN, ...), or read variable.values one by one",
        )
    session = here.runner
    if session is not None and frame is not None:
        locals_ = [frame.local(variable, index) for index in range(session.num_local)]
        if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return session.gather([[value[None] for value in locals_]], 0)[0][0]
        return session.reduce(reduction_of(aggregation), [locals_])[0]
    stacked = variable.stored() if frame is None else frame.whole(variable)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA or variable.num_replicas == 1:
        return stacked[0]
    algorithm = variable.strategy.cross_device_ops
    return reduce_stacked(algorithm, reduction_of(aggregation), [stacked], variable.layout)[0]


# Writing


def write(variable: Any, called: str, combine: Combine, value: Any, where: str) -> Any:
    """Assigns ``combine(old, value)`` by the rules, and returns the new value as the context sees it."""
    here = ambient()
    frame = frame_of(variable, here)
    _check_write(variable, frame, called)
    if isinstance(value, Mirrored):
        value = value.value
    _check_strategy(variable, here, called)
    if here.replica is None:
        return _write_whole(variable, called, combine, value, where, frame, here)
    if isinstance(value, PerReplica):
        raise VariableError(
            called,
            found=f"a per-replica value was assigned to {variable.name!r} inside a replica",
            rule="inside run each replica assigns its own component",
            remedy="pass the per-replica value to run(fn, args=(value,)) and assign what the replica receives",
        )
    return _write_replica(variable, called, combine, value, where, frame, here)


def _write_whole(
    variable: Any, called: str, combine: Combine, value: Any, where: str, frame: Frame | None, here: Ambient
) -> Any:
    if variable.per_replica:
        _write_components(variable, called, combine, value, where, frame, here)
        return None if variable.aggregation is VariableAggregation.NONE else _aggregate(variable, frame, here)
    if isinstance(value, PerReplica):
        value = _reduce_assigned(variable, called, value, here)
    old = _old(variable, called) if frame is None else frame.whole(variable)
    new = _fitting(variable, called, combine, old, _aligned(variable, value))
    if frame is None:
        variable.store(placed(_own(new, value), variable.layout, per_replica=False))
        return variable.stored()
    frame.set_whole(variable, new, where)
    return new


def _write_components(
    variable: Any, called: str, combine: Combine, value: Any, where: str, frame: Frame | None, here: Ambient
) -> None:
    aggregation, count = variable.aggregation, variable.num_replicas
    adds = not called.endswith(".assign")
    per_replica = isinstance(value, PerReplica)
    if (
        aggregation is VariableAggregation.NONE or (adds and aggregation is VariableAggregation.SUM)
    ) and not per_replica:
        raise VariableError(
            called,
            found=f"sync-on-read variable {variable.name!r} with aggregation {_name(aggregation)}, "
            "in cross-replica context",
            rule="there an assignment must say what each replica's component becomes: "
            "SUM divides an assigned value among replicas and cannot add; NONE says nothing",
            remedy="assign inside run, or assign a per-replica value",
        )
    session = here.runner
    if session is not None and frame is not None:
        shares = [session.component(value, k) for k in range(session.num_local)] if per_replica else None
        for k in range(session.num_local):
            part = shares[k] if shares is not None else _share(variable, value, _replica_index(session, k))
            old = frame.local(variable, k)
            frame.set_local(variable, k, _fitting(variable, called, combine, old, part), where)
        return
    parts = list(value.values) if per_replica else [_share(variable, value, k) for k in range(count)]
    if frame is None:
        olds = [variable.stored_component(k) if adds else None for k in range(count)]
        parts = [_near(part, old) for part, old in zip(parts, olds, strict=True)]
    else:
        olds = list(frame.whole(variable))
    new = [_fitting(variable, called, combine, old, part) for old, part in zip(olds, parts, strict=True)]
    if frame is None:
        variable.store(stack_components(new, variable.layout))
    else:
        frame.set_whole(variable, jnp.stack(new), where)


def write_component(variable: Any, replica: int, called: str, combine: Combine, value: Any, where: str) -> Any:
    """Assigns one component of a sync-on-read variable in cross-replica context."""
    if not variable.per_replica:
        raise VariableError(
            called,
            found=f"an assignment to one copy of mirrored variable {variable.name!r}",
            rule="the copies of a mirrored variable are equal at all times, so they change together only",
            remedy="assign the variable itself, or create it with synchronization=VariableSynchronization.ON_READ",
        )
    here = ambient()
    frame = frame_of(variable, here)
    _check_write(variable, frame, called)
    _check_strategy(variable, here, called)
    if here.runner is not None:
        raise ContextError(
            called,
            found=f"an assignment to replica {replica}'s component inside run",
            rule="inside run each replica assigns its own component, by the variable",
            remedy=f"write {variable.name}.assign(value) in the replica function",
        )
    old = variable.stored() if frame is None else frame.whole(variable)
    new = _fitting(variable, called, combine, old[replica], value)
    whole = old.at[replica].set(new)
    if frame is None:
        variable.store(jax.device_put(whole, variable.layout.sharded))
    else:
        frame.set_whole(variable, whole, where)
    return new


def _replica_index(session: Session, local: int) -> Any:
    """Which of all replicas a local one is: known only to the running program where one device stands for all."""
    if session.num_local == session.layout.num_replicas:
        return local
    indices = range(session.layout.num_replicas)
    return session.component(PerReplica([jnp.asarray(index) for index in indices], session.layout), local)


def _share(variable: Any, value: Any, replica: Any) -> Any:
    """The part of a value assigned in cross-replica context that one replica's component gets."""
    if variable.aggregation is not VariableAggregation.SUM:
        return value
    count = variable.num_replicas
    value = jnp.asarray(value, variable.dtype)
    if jnp.issubdtype(variable.dtype, jnp.integer):
        # The first replicas get the remainder, so that the sum is what was assigned.
        return value // count + (replica < value % count).astype(value.dtype)
    return value / count


def _write_replica(
    variable: Any, called: str, combine: Combine, value: Any, where: str, frame: Frame | None, here: Ambient
) -> Any:
    aggregation, session, index = variable.aggregation, here.runner, here.replica.local_index
    alone = session is None or session.layout.num_replicas == 1
    if frame is None and session is not None:
        return _write_shared(variable, called, combine, value, session.component(_old(variable, called), index))
    if frame is None:
        old = _old(variable, called)
        first = old[0] if variable.per_replica and old is not None else old
        new = _fitting(variable, called, combine, first, _aligned(variable, value))
        variable.store(placed(_own(new, value), variable.layout, variable.per_replica))
        return new
    if not (variable.per_replica or aggregation is VariableAggregation.NONE or alone):
        assert session is not None
        _merge_assignment(variable, called, combine, value, where, frame, session)
        return frame.local(variable, index)
    new = _fitting(variable, called, combine, frame.local(variable, index), value)
    frame.set_local(variable, index, new, where)
    return new


def _old(variable: Any, called: str) -> Any:
    """The value in storage to combine with; None where it is replaced, so that a lost value may be assigned over."""
    return None if called.endswith(".assign") else variable.stored()


def _write_shared(variable: Any, called: str, combine: Combine, value: Any, old: Any) -> Any:
    """A plain variable, assigned by one replica of an eager run on its own device."""
    new = _fitting(variable, called, combine, old, value)
    # By way of the host it is committed to no device, so that the next replica can use it on its own.
    variable.store(jnp.asarray(np.array(new)))
    return new


def _merge_assignment(
    variable: Any, called: str, combine: Combine, value: Any, where: str, frame: Frame, session: Session
) -> None:
    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        merged = _aligned(variable, _merged(variable, called, payloads, session))
        frame.set_whole(variable, _fitting(variable, called, combine, frame.whole(variable), merged), where)
        return [None] * len(payloads)

    session.meet(Merge(called, run), value)


def _merged(variable: Any, called: str, payloads: Sequence[Any], session: Session) -> Any:
    """What the replicas' assigned values become together."""
    aggregation, first = variable.aggregation, payloads[0]
    one_number = (
        not hasattr(first, "dtype") and not isinstance(first, (list, tuple)) and all(p == first for p in payloads)
    )
    if one_number:
        if aggregation in (VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA):
            return first
        raise VariableError(
            called,
            found=f"the Python number {first!r} for variable {variable.name!r} with aggregation {_name(aggregation)}",
            rule="a Python number is one value, not one per replica, so it cannot be reduced over replicas",
            remedy=f"say what is meant: jnp.asarray({first!r}) is one value per replica; "
            "aggregation=MEAN keeps it as it is",
        )
    arrays = [jnp.asarray(payload) for payload in payloads]
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return session.gather([[array[None] for array in arrays]], 0)[0][0]
    return session.reduce(reduction_of(aggregation), [arrays])[0]


def _reduce_assigned(variable: Any, called: str, value: PerReplica, here: Ambient) -> Any:
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            called,
            found=f"a per-replica value for mirrored variable {variable.name!r} with aggregation NONE",
            rule="a mirrored variable is equal on all replicas, so values that differ must be aggregated",
            remedy="create it with aggregation=VariableAggregation.MEAN (or SUM, ...), or reduce the value first",
        )
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return value.values[0]
    op, session = reduction_of(aggregation), here.runner
    if session is not None and (isinstance(value, LocalPerReplica) or here.frame is not None):
        parts = [session.component(value, k) for k in range(session.num_local)]
        return session.reduce(op, [parts])[0]
    return reduce_stacked(variable.strategy.cross_device_ops, op, [value.stacked(variable.layout)], variable.layout)[0]


def _fitting(variable: Any, called: str, combine: Combine, old: Any, value: Any) -> Any:
    """``combine(old, value)`` after checking shape and dtype."""
    shape = np.shape(value)
    if shape != variable.shape:
        raise VariableError(
            called,
            found=f"a value of shape {shape} for variable {variable.name!r} of shape {variable.shape}",
            rule="an assigned value has the variable's shape",
            remedy="reshape or broadcast it: jnp.broadcast_to(value, variable.shape)",
        )
    given = getattr(value, "dtype", None)
    if given is not None and not _casts(given, variable.dtype):
        raise VariableError(
            called,
            found=f"a value of dtype {given} for variable {variable.name!r} of dtype {variable.dtype}",
            rule="a value is cast only where its kind is kept (float to float, int to int or float)",
            remedy=f"cast it on purpose: value.astype({str(variable.dtype)!r})",
        )
    new = combine(old, jnp.asarray(value, variable.dtype))
    return new.astype(variable.dtype)


def _casts(given: Any, wanted: Any) -> bool:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    rank = [next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), None) for dtype in (given, wanted)]
    if rank[0] is None or rank[1] is None:
        return bool(given == wanted)
    return rank[0] <= rank[1]


def _own(new: Any, value: Any) -> Any:
    """A buffer that nobody else holds: a compiled step may donate it."""
    return jnp.array(new, copy=True) if new is value or not is_tracer(new) else new


def _name(aggregation: Any) -> str:
    return getattr(aggregation, "name", None) or getattr(aggregation, "__name__", repr(aggregation))
