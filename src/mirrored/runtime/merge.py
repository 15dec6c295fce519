"""Operations that all local replicas of a `run` execute together, such as collectives and `merge_call` (merges).

`run_merge` is the only way from replica to cross-replica context. Each local replica waits at a barrier with its
payload; when all have arrived, the merge runs once over all payloads and returns one result to each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import WithinTrace, current_trace, is_eval, suspends_tapes, trace_below_tapes
from mirrored.errors import MergeError, MirroredError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.rollback import with_rollback

if TYPE_CHECKING:
    from mirrored.runtime.replica_runner import ReplicaRunner


class Given(NamedTuple):
    """An argument of a collective or `merge_call` that must be equal on all replicas, such as the axis of a gather.

    Attributes:
        key: The argument, or what identifies it (`key_of`).
        label: What it is, in messages: ``"axis"``.
        shown: The argument in messages. It is formatted only when a message is needed.
        error: The class of the error that is raised if another replica has passed another argument.
    """

    key: Any
    label: str
    shown: object
    error: type[MirroredError] = MergeError

    def __str__(self) -> str:
        return f"{self.label} {self.shown}"

    def differs_from(self, other: Given) -> bool:
        """Returns whether this argument and the argument `other` of another replica differ.

        If the comparison of the arguments raises an exception, they count as different only if their types differ.
        """
        if self.key is other.key:
            return False
        try:
            return bool(self.key != other.key)
        except Exception:  # a user's `__eq__`, of a dataclass with arrays for instance
            return type(self.key) is not type(other.key)


def same_object(one: object, described: str) -> Given:
    """Returns the requirement that all replicas call a collective with the same Python object.

    The object is a variable, for example. The requirement is an element of `Merge.given`.
    """
    return Given(id(one), described, f"(id {id(one):#x})")


@dataclasses.dataclass(frozen=True)
class Merge:
    """An operation that all replicas call together, such as a collective or `merge_call`.

    Attributes:
        name: What the user called, for messages: ``"ReplicaContext.all_reduce"``.
        run: Maps one payload per local replica to one result per local replica. Called once, in cross-replica context:
            every replica passes a `Merge`, and only that of the first replica is executed. A payload and a result are
            flat lists. A tape unwraps and records the arrays in them, and passes all other objects on.
        nested: The implementation under a JAX transform, where the local replicas cannot wait for each other. It
            records a placeholder for this replica's part of the collective; `strategies.fusing` combines it with those
            of the other local replicas. None: not supported under transforms.
        calls_user_code: Whether `run` may call functions of the user, whose assignments of variables are undone if the
            operation raises an exception.
        tapes: The number of tapes that record it in this replica.
        is_suspended: Whether this replica has suspended tapes around the run, which then do not record `run`.
        given: What must be equal in the calls of all replicas: the reduction, the axis, the function, the variable.
        enclosed: The arrays that the function of a `merge_call` closes over, by name. They must be equal on all
            replicas. A lock-step runner compares concrete arrays (they are part of `given`), and a compiled run
            checks traced ones.
    """

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]
    nested: Callable[[int, list[Any]], list[Any]] | None = None
    calls_user_code: bool = True
    tapes: int = 0
    is_suspended: bool = False
    given: tuple[Given, ...] = ()
    enclosed: tuple[tuple[str, Any], ...] = ()

    def complete(self, payloads: Sequence[Any]) -> Sequence[Any]:
        """Executes the operation once for all local replicas and returns one result per replica.

        If a function of the user raises an exception in it, the assignments of variables are undone.
        """
        return with_rollback(lambda: self.run(payloads)) if self.calls_user_code else self.run(payloads)


@runtime_checkable
class RecordsMerges(Protocol):
    """Protocol of JAX traces that record collectives and `merge_call` on a gradient tape."""

    def process_merge(self, merge: Merge, payload: list[Any]) -> list[Any]:
        """Executes a collective or `merge_call`, records it on the tape, and returns results that the tape tracks.

        The replica waits at the merge with the values of `payload`, without the tape's boxes around them.
        """
        ...

    def process_outer_merge(self, run: Callable[[list[Any]], list[Any]], payload: list[Any]) -> list[Any]:
        """Executes a collective or `merge_call` of an eager run that the tape is around: `run`, applied to `payload`.

        The operations of the merge are recorded, unless the replica is in a function with a derivative rule of its own.
        """
        ...


def run_merge(merge: Merge, payload: list[Any]) -> list[Any]:
    """Waits until all replicas have called this collective or `merge_call`; returns this replica's result.

    The merge runs once for all replicas.

    Context: replica context. Without a runner, or with one local replica in a compiled run, the merge runs in place, so
    that enclosing tapes record its operations like any others.

    Raises:
        MergeError: The call is under a JAX transform (`jit`, `scan`, `cond`, `vmap`, ...) inside the replica function,
            and is not an `all_reduce` or `all_gather`.
    """
    runner = ambient().runner
    if runner is None:  # the default strategy: its only replica waits for no other
        return list(merge.complete([payload])[0])
    if merge.nested is None and is_outside(runner):  # eager code in a traced run: no trace records it
        return list(runner.run_merge(merge, payload))
    if runner.in_place:  # one local replica, without a thread of its own
        if trace_below_tapes(current_trace()) is runner.base_trace:
            return list(runner.run_merge(merge, payload))
        if merge.nested is None:
            raise under_transform_error(merge)
        return merge.nested(0, payload) if runner.writes_halves else list(runner.run_merge(merge, payload))
    payload = runner.sent(payload)
    trace = current_trace()
    if trace is runner.run_trace or suspends_tapes(trace, runner.run_trace):  # no tape or transform of the replica
        return _merged_in_run(merge, payload, runner)
    is_in_run = trace_below_tapes(trace) is trace_below_tapes(runner.run_trace)
    if isinstance(trace, RecordsMerges) and (merge.nested is None or is_in_run):
        return trace.process_merge(merge, payload)  # unwraps the tape's values, and waits at the barrier
    if merge.nested is None:
        raise under_transform_error(merge)
    # Under `jit`, `scan`, ...: each replica records its part as a placeholder, and `strategies.fusing` combines them.
    local = ambient().replica.local_index
    runner.separate_traces(local)
    return merge.nested(local, payload)


def _merged_in_run(merge: Merge, payload: list[Any], runner: ReplicaRunner) -> list[Any]:
    """Waits at the barrier for a replica that is in the trace of the run, or has suspended the tapes around it.

    The thread that started the replicas runs the operation, and the tapes record there. If the replica has suspended
    them, as an optimizer does, they are suspended there, too.
    """
    trace = current_trace()
    if trace is runner.run_trace:
        if not isinstance(trace, RecordsMerges):
            return list(runner.run_merge(merge, payload))
        return trace.process_outer_merge(lambda values: list(runner.run_merge(merge, values)), payload)

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        with WithinTrace(trace, removes_token=is_eval(trace)):
            return merge.run(payloads)

    values = [payload_of(value) for value in payload] if is_eval(trace) else payload
    return list(runner.run_merge(dataclasses.replace(merge, run=run, is_suspended=True), values))


def is_outside(runner: ReplicaRunner) -> bool:
    """Returns whether the caller computes eagerly although `run` is traced, as in a `tf.init_scope` block."""
    return is_eval(current_trace()) and not is_eval(trace_below_tapes(runner.base_trace))


_UNDER_TRANSFORM: Final = "it was called under a JAX transform inside the replica function"


def under_transform_error(merge: Merge) -> MergeError:
    """Returns the error for an operation that runs once for all replicas, but was called under a JAX transform."""
    return MergeError(
        merge.name,
        found=f"{_UNDER_TRANSFORM} ({type(current_trace()).__name__})",
        rule="inside jit, scan, cond or vmap, replicas cannot wait for each other; of the operations that run once for "
        "all replicas, only all_reduce and all_gather can be called there, in a step compiled by mirrored.function",
        remedy="call it in the replica function itself, on the value that the transform returns (the block of a "
        "GradientTape is not a transform)",
    )


def is_under_transform_error(error: MergeError) -> bool:
    """Returns whether an error says that an operation was called under a JAX transform.

    The operation is a collective or `merge_call`; `under_transform_error` creates the error.
    """
    return error.found.startswith(_UNDER_TRANSFORM)


def runs_in_place() -> bool:
    """Returns whether the caller runs directly in the replica function, not in a JAX transform inside it.

    Every collective and `merge_call` can be called directly in the replica function.
    """
    runner = ambient().runner
    return runner is not None and trace_below_tapes(current_trace()) is trace_below_tapes(runner.base_trace)
