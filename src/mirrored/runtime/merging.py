"""Merges: operations over all local replicas of a run.

`run_merge` is the only way from replica to cross-replica context. Each local replica waits at a barrier with its
payload; when all have arrived, the merge runs once over all payloads and returns one result to each.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mirrored._jax import jit_key
from mirrored._jax.traces import current_trace, recording_parent
from mirrored.errors import MergeError
from mirrored.runtime.ambient import ambient

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment


@dataclasses.dataclass(frozen=True)
class Merge:
    """An operation over all local replicas at once.

    Attributes:
        name: What the user called, for messages: ``"ReplicaContext.all_reduce"``.
        run: From one payload per local replica to one result per local replica. Called once, in cross-replica context.
            Array payloads are flat lists of arrays, so that a tape can unwrap and record them.
        nested: The same under a JAX transform, where the local replicas cannot wait for each other: writes down this
            local replica's half. None: such a merge has no form there.
    """

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]
    nested: Callable[[int, list[Any]], list[Any]] | None = None


@runtime_checkable
class RecordsMerges(Protocol):
    """A JAX trace, opened inside a replica, that takes part in merges (the tape's)."""

    def process_merge(self, merge: Merge, payload: list[Any]) -> list[Any]:
        """Meets with the payload unwrapped, records the merge, returns the results wrapped."""
        ...


class ReplicaRunner(abc.ABC):
    """One `run` in progress: its local replicas, how they meet, and how values cross between the contexts.

    Attributes:
        layout: Which replica lives on which device.
        num_local: How many replicas run in this session: this process's in eager mode, one device's in compiled mode.
        stands_for_others: Whether the local replicas stand for those of all devices (one program for all).
        in_place: One local replica and no threads: merges run where they are called.
        writes_halves: With one local replica, whether collectives under transforms are written down to be fused later,
            as with several: where the algorithm that sums has no derivatives of all kinds.
        base_trace: The JAX trace that was current when the replicas started.
        letters: What each local replica sends beside the arrays of a merge, by local index.
        reply: What the newest merge sends to all beside the arrays.
        created: The variables that the replicas have created, by line of user code and how often it has created one.
        creations: How often each local replica has created a variable at a line.
    """

    device_assignment: DeviceAssignment
    num_local: int
    stands_for_others: bool
    in_place: bool
    writes_halves: bool = False
    base_trace: Any
    side_inputs: dict[int, Any]
    side_results: Any
    created: dict[tuple[str, int], Any]
    creations: dict[tuple[int, str], int]

    def trace_key(self, local: int) -> Hashable:
        """The token of a local replica in JAX's tracing caches."""
        return self.device_assignment.num_replicas, local

    def tell_apart(self, local: int) -> None:
        """A replica is told which it is: a helper that is being traced must not be reused by other replicas."""
        if not self.in_place and recording_parent(current_trace()) is not self.base_trace:
            jit_key.tell_replicas_apart(self.trace_key(local))

    def note_summed(self, called: str, gradients: Sequence[Any]) -> None:  # noqa: B027
        """Notes the gradients of one replica that an optimizer sums over replicas. Compiled sessions examine them."""

    @abc.abstractmethod
    def run_merge(self, merge: Merge, payload: Any) -> Any:
        """Blocks this replica until all have arrived and the merge has run; its own result."""

    @abc.abstractmethod
    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Reduces arrays over all replicas; per array one component per local replica. Cross-replica context."""

    @abc.abstractmethod
    def all_reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """As `reduce`, with a result for each local replica: equal in value, each with a gradient of its own."""

    @abc.abstractmethod
    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        """Concatenates arrays of all replicas along `axis`. Cross-replica context."""

    def first(self, components: Sequence[Any]) -> Any:
        """The first replica's component, from one component per local replica, for all. Cross-replica context."""
        return self.gather([[component[None] for component in components]], 0)[0][0]

    @abc.abstractmethod
    def group(self, components: Sequence[Any]) -> Any:
        """The cross-replica value that one component per local replica makes."""

    @abc.abstractmethod
    def is_shared(self, components: Sequence[Any]) -> bool:
        """Whether one component per local replica is one and the same object on all replicas."""

    @abc.abstractmethod
    def component(self, value: Any, local: int) -> Any:
        """What a local replica sees of a cross-replica value."""

    @abc.abstractmethod
    def reduced_component(self, value: Any, local: int) -> Any:
        """A local replica's own copy of the result of a collective: per replica, though equal on all."""


def run_merge(merge: Merge, payload: list[Any]) -> list[Any]:
    """Meets the other local replicas at `merge` and returns this replica's result.

    Context: replica context. With one local replica the merge runs in place, so that surrounding tapes see
    its operations as ordinary ones.

    Raises:
        MergeError: The call sits under a JAX transform (`jit`, `scan`, `cond`, `vmap`, ...) inside the replica
            function, and is no `all_reduce` or `all_gather`.
    """
    runner = ambient().runner
    if runner is None:
        return list(merge.run([payload])[0])
    if runner.in_place:
        if not _is_transformed(runner):
            return list(runner.run_merge(merge, payload))
        if merge.nested is None:
            raise _refused(merge)
        return merge.nested(0, payload) if runner.writes_halves else list(runner.run_merge(merge, payload))
    trace = current_trace()
    if trace is runner.base_trace:
        return list(runner.run_merge(merge, payload))
    if isinstance(trace, RecordsMerges):
        return trace.process_merge(merge, payload)
    if merge.nested is None:
        raise _refused(merge)
    local = ambient().replica.local_index
    runner.tell_apart(local)
    return merge.nested(local, payload)


def _is_transformed(runner: ReplicaRunner) -> bool:
    return recording_parent(current_trace()) is not runner.base_trace


def _refused(merge: Merge) -> MergeError:
    return MergeError(
        merge.name,
        found=f"it was called under a JAX transform inside the replica function ({type(current_trace()).__name__})",
        rule="under a transform replicas meet in all_reduce and all_gather only; other merges run Python code once for "
        "all replicas, in the replica function itself or under a GradientTape",
        remedy="call it outside the jit/scan/cond/vmap, on the value that the transform returns",
    )
