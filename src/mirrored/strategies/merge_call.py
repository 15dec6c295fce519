"""Implements `merge_call`, and the collectives that a replica calls inside a JAX transform."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.local_collectives import register_eager_implementations, replica_gather, replica_sum
from mirrored._jax.traces import current_trace
from mirrored._jax.trees import Structure
from mirrored.collectives.algorithm import checked
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.collectives.summation import floating, narrow, widen
from mirrored.errors import MergeError, TapeError
from mirrored.runtime.ambient import ReadListener, ambient, within
from mirrored.runtime.entry_point import EagerlyWithin
from mirrored.runtime.function_key import FunctionKey, ShownFunction, key_of
from mirrored.runtime.merge import Given, Merge, RecordsMerges, is_outside, run_merge
from mirrored.runtime.rollback import with_rollback
from mirrored.runtime.variable_store import VariableStore
from mirrored.strategies.device_errors import devices_of_merge
from mirrored.tape import GradientTape
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues, LocalPerReplica, Mirrored, PerReplica

if TYPE_CHECKING:
    from mirrored.runtime.replica_runner import ReplicaRunner
    from mirrored.strategies.context import ReplicaContext


# Collectives of one local replica under a JAX transform, where it cannot wait for the other local replicas.


def nested_reduce(
    op: ReduceOp, arrays: Sequence[Any], local: int, replicas: int, called: str, given: tuple[bool | None, ...]
) -> list[Any]:
    """All-reduces one replica's arrays inside a JAX transform.

    The transform, such as `jax.grad`, is inside the replica function.

    Args:
        op: The reduction.
        arrays: The replica's arrays.
        local: The local index of the replica.
        replicas: The number of replicas.
        called: What the user called, for messages.
        given: Which leaves of the replica's structure the arrays are.
    """
    if not arrays:
        return []
    arrays = [checked(op, [array])[0] for array in arrays]
    if op is ReduceOp.SUM:
        return replica_sum(arrays, local, replicas, called, given)
    if op is ReduceOp.MEAN:
        exact = list(map(floating, arrays))
        sums = replica_sum(list(map(widen, exact)), local, replicas, called, given)
        return [narrow(total / replicas, array.dtype) for total, array in zip(sums, exact, strict=True)]
    return [op(stacked) for stacked in replica_gather(arrays, local, replicas, called, given)]


def nested_gather(arrays: Sequence[Any], axis: int, local: int, replicas: int, called: str) -> list[Any]:
    """All-gathers one replica's arrays along `axis` inside a JAX transform.

    The transform, such as `jax.grad`, is inside the replica function.
    """
    if not arrays:
        return []
    return [jnp.concatenate(list(stacked), axis) for stacked in replica_gather(arrays, local, replicas, called)]


def _merge(name: str, run: Callable[[Sequence[Any]], Sequence[Any]], arrays: list[Any]) -> list[Any]:
    runner = ambient().runner
    if runner is None:
        raise MergeError(
            name,
            found="a tape around an eager run differentiates, after the run, a gradient, loop or branch in which a "
            "replica called it",
            rule="the replicas of an eager run exchange values only during the run",
            remedy="compile the step (mirrored.function), or open the tape inside the function given to run",
        )
    return list(runner.run_merge(Merge(name, run), arrays))


def _sums(arrays: list[Any], called: str) -> list[Any]:
    runner: Any = ambient().runner

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        results = runner.all_reduce(ReduceOp.SUM, [list(parts) for parts in zip(*payloads, strict=True)])
        return [[parts[k] for parts in results] for k in range(len(payloads))]

    return _merge(called, run, arrays)


def _gathers(arrays: list[Any], called: str) -> list[Any]:
    runner: Any = ambient().runner

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        rows = [[part[None] for part in parts] for parts in zip(*payloads, strict=True)]
        results = runner.gather_each(rows, 0)
        return [[parts[k] for parts in results] for k in range(len(payloads))]

    return _merge(called, run, arrays)


def _number(local: int) -> int | None:
    runner = ambient().runner
    return None if runner is None or runner.stands_for_others else runner.device_assignment.addressable_replicas[local]


register_eager_implementations(_sums, _gathers, _number)


# `merge_call`: runs a user's function once, on the arguments of all replicas.
#
# A replica's payload is its arrays, which tapes record, then one `_Rest` with all other objects. Its result has this
# form, too.


class _ArrayPlaceholder:
    """Placeholder for an array among the leaves of a structure whose arrays are passed separately."""


class _Rest(NamedTuple):
    """A structure whose arrays are replaced by placeholders; all other leaves are kept.

    Attributes:
        leaves: The leaves, with `_SLOT` in place of each array.
        treedef: The structure.
    """

    leaves: list[Any]
    treedef: Any

    def restored(self, arrays: Sequence[Any]) -> Any:
        """Returns the complete structure, with `arrays` in place of the placeholders."""
        rest = iter(arrays)
        return self.treedef.unflatten([next(rest) if leaf is _SLOT else leaf for leaf in self.leaves])


_SLOT = _ArrayPlaceholder()


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and not isinstance(leaf, DistributedValues)


def _payload(leaves: Sequence[Any], treedef: Structure) -> list[Any]:
    """Splits a structure into a list for a merge: its arrays, then a `_Rest` with placeholders for the arrays."""
    rest = _Rest([_SLOT if _is_array(leaf) else leaf for leaf in leaves], treedef)
    return [*(leaf for leaf in leaves if _is_array(leaf)), rest]


def call_merged(
    context: ReplicaContext, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Waits for all replicas, calls `merge_fn` once, and returns this replica's component of the result."""
    runner = ambient().runner
    if runner is None:
        call = functools.partial(merge_fn, context.strategy, *args, **kwargs)
        if context.strategy.device_assignment is None:
            with within(replica=None, strategies=(*ambient().strategies, context.strategy)):
                return call()
        with within(replica=None):
            return with_rollback(call)

    name = f"ReplicaContext.merge_call({getattr(merge_fn, '__name__', 'merge_fn')})"
    outside = is_outside(runner)
    group, components = (_group_outside, _components_outside) if outside else (_group_in_run, _components_in_run)
    # The function runs in the thread that started the replicas, in which the trace of the run is current.
    here = functools.partial(_eagerly, ambient().store) if outside else contextlib.nullcontext
    is_recorded = isinstance(current_trace(), RecordsMerges)  # not if the replica has suspended its tapes
    tapes = _tapes() if is_recorded and not outside else []
    is_taped = any(tape not in runner.outer_listeners for tape in tapes)

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        # A merge that does not run in place runs in the thread that started the replicas: its tapes are outside of it.
        outer = [] if runner.in_place else _tapes()
        is_probed = runner.device_assignment.num_replicas > 1 and any(tape not in outer for tape in tapes)
        probe = GradientTape() if is_probed else None
        with within(replica=None), here(), probe or contextlib.nullcontext():
            merged_args, merged_kwargs = _merged_arguments(
                runner, payloads, functools.partial(group, runner), is_taped=is_taped
            )
            with devices_of_merge(name):
                result = merge_fn(context.strategy, *merged_args, **merged_kwargs)
            leaves, treedef = structures.flatten(result)
            if probe is not None:
                _check_gradients(name, probe, leaves)
        columns = [components(runner, leaf) for leaf in leaves]
        for leaf, column in zip(leaves, columns, strict=True):
            runner.note_merged(leaf, column, is_taped=is_taped)
        return [_payload([column[local] for column in columns], treedef) for local in range(len(payloads))]

    key = key_of(merge_fn)
    given = (Given(key, "the function", ShownFunction(merge_fn)),)
    others = runner.outer_listeners if is_recorded else ambient().listeners
    merge = Merge(name, run, given=given, enclosed=enclosed_by(name, key, others))
    *arrays, rest = run_merge(merge, _payload(*structures.flatten((args, kwargs))))
    return rest.restored(arrays)


def _merged_arguments(
    runner: ReplicaRunner, payloads: Sequence[Any], group: Callable[[Sequence[Any]], Any], *, is_taped: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Combines the replicas' arguments of `merge_call`: keeps shared arguments, and applies `group` to all others.

    The arguments passed to `group` have boundaries that XLA does not fuse across (`ReplicaRunner.isolated`).

    Args:
        runner: The runner of the replicas.
        payloads: The replicas' payloads.
        group: Combines the replicas' values of an argument that they do not share.
        is_taped: Whether the replicas have opened tapes. Isolated arrays are then the replicas' own, as in eager runs.
    """
    parts = [payload[-1].restored(payload[:-1]) for payload in payloads]
    columns, treedef = structures.transpose(parts, "ReplicaContext.merge_call")
    isolated = list(zip(*map(runner.isolated, zip(*columns, strict=True)), strict=True))
    shared = runner.are_shared(isolated if is_taped else columns)
    leaves = zip(columns, isolated, shared, strict=True)
    return treedef.unflatten([one[0] if is_shared else group(own) for one, own, is_shared in leaves])  # type: ignore[no-any-return]


def enclosed_by(called: str, key: FunctionKey, outer: Sequence[ReadListener] = ()) -> tuple[tuple[str, Any], ...]:
    """Returns a pair (name, array) for each array that a function passed to `merge_call` closes over.

    Args:
        called: The name of the call, for messages.
        key: The key of the function.
        outer: The tapes that record what the function does: those that were open when the run began. All tapes, if
            the replica has suspended them.

    Raises:
        TapeError: The function closes over an array that another tape tracks.
    """
    tapes = [tape for tape in ambient().listeners if tape not in outer]
    for name, array_key in key.arrays:
        if any(tape.tracks(array_key.array) for tape in tapes):
            raise TapeError(
                called,
                found=f"the function closes over {name!r}, which a GradientTape tracks",
                rule="the function runs once for all replicas, so gradients flow only to the arguments of merge_call",
                remedy=f"pass it as an argument: merge_call(merge_fn, args=({name},))",
            )
    return tuple((name, array_key.array) for name, array_key in key.arrays)


def _tapes() -> list[ReadListener]:
    return [listener for listener in ambient().listeners if not isinstance(listener, VariableStore)]


def _check_gradients(called: str, probe: GradientTape, results: Sequence[Any]) -> None:
    """Raises an error if results of a `merge_call` function depend differentiably on variables that it has read.

    The tapes of the replicas do not record what the function does, so the gradients of the variables would be lost.

    Args:
        called: The name of the call, for the message.
        probe: A tape that is open around the function. It watches the variables that the function reads, and not the
            arguments, so a result that it tracks is a function of a variable.
        results: The results.
    """
    parts = [part for leaf in results for part in _parts(leaf)]
    if any(_is_array(part) and probe.tracks(part) for part in parts):
        names = ", ".join(repr(variable.name) for variable in probe.watched_variables())
        raise TapeError(
            called,
            found=f"the function reads the trainable variable {names} and returns arrays that are computed from it, "
            "under a GradientTape that the replica function has opened",
            rule="the function runs once for all replicas, so gradients flow only to the arguments of merge_call",
            remedy="read the variable in the replica function and pass it: merge_call(merge_fn, "
            "args=(variable.read_value(),)); or call merge_call outside of the tape's with block",
        )


def _parts(leaf: Any) -> Sequence[Any]:
    """Returns the arrays that represent a result: those of the local replicas if it is per replica."""
    if isinstance(leaf, LocalPerReplica):
        return leaf.local
    if not isinstance(leaf, PerReplica):
        return [leaf]
    return [leaf.first()] if leaf.is_stacked else leaf.values


def _group_in_run(runner: ReplicaRunner, components: Sequence[Any]) -> Any:
    return runner.group_argument(components)


def _components_in_run(runner: ReplicaRunner, value: object) -> Sequence[Any]:
    return runner.components_each(value)


# Eager code inside a run that is traced (`tf.init_scope`). The replicas of one device are traced for all devices, so
# their eager values also stand for those of the replicas on the other devices.


def _eagerly(store: VariableStore | None) -> AbstractContextManager[None]:
    return EagerlyWithin(store=store, runner=None)


def _group_outside(runner: ReplicaRunner, components: Sequence[Any]) -> PerReplica:
    slots = runner.device_assignment.slots
    values = [components[k] for device in range(slots.devices) for k in range(slots.number_on(device))]
    return PerReplica.of_components(values, runner.device_assignment)


def _components_outside(runner: ReplicaRunner, value: object) -> Sequence[Any]:
    if isinstance(value, Mirrored):
        value = value.value
    if not isinstance(value, PerReplica):
        return [value] * runner.num_local
    values, slots = value.values, runner.device_assignment.slots
    if all(one is values[slots.of(replica) % runner.num_local] for replica, one in enumerate(values)):
        return values[: runner.num_local]
    raise MergeError(
        "ReplicaContext.merge_call",
        found="the merged function returned a value that differs between devices, in a tf.init_scope of a compiled run",
        rule="a compiled run is traced once for all devices, so what eager code receives must be equal on all of them",
        remedy="return one value for all replicas, or call merge_call outside of tf.init_scope",
    )
