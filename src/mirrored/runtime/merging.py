"""Merges: operations over all local replicas of a run, such as collectives and `merge_call`.

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
        run: Maps one payload per local replica to one result per local replica. Called once, in cross-replica context.
            Array payloads are flat lists of arrays, so that a tape can unwrap and record them.
        nested: The implementation under a JAX transform, where the local replicas cannot wait for each other. It
            records this local replica's part of the merge, for a later fusion. None: not supported under transforms.
    """

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]
    nested: Callable[[int, list[Any]], list[Any]] | None = None


@runtime_checkable
class RecordsMerges(Protocol):
    """A JAX trace that a replica opens and that takes part in merges. The trace of a tape does."""

    def process_merge(self, merge: Merge, payload: list[Any]) -> list[Any]:
        """Waits at the merge with the unwrapped payload, records the merge, and returns wrapped results."""
        ...


class ReplicaRunner(abc.ABC):
    """One `run` in progress: its local replicas, their merges, and the conversion of values between contexts.

    Attributes:
        device_assignment: The devices of the replicas.
        num_local: The number of local replicas: those of this process in eager mode, of one device in compiled mode.
        stands_for_others: Whether the local replicas represent those of every device (one SPMD program for all).
        in_place: Whether there is one local replica and no threads, so that merges run where they are called.
        writes_halves: Whether, with one local replica, collectives under transforms are recorded for a later fusion, as
            with several. True if the reduction algorithm does not support every kind of derivative.
        base_trace: The JAX trace that was current when the replicas started.
        side_inputs: The inputs of each local replica to a merge other than its arrays, by local index.
        side_results: The results of the newest merge other than its arrays, for all local replicas.
        created: The variables that the replicas have created, by the line of user code and its number of executions.
        creations: The number of variables that each local replica has created at a line.
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
        """Returns the token of a local replica in the keys of JAX's tracing caches."""
        return self.device_assignment.num_replicas, local

    def tell_apart(self, local: int) -> None:
        """Gives a jitted helper that is being traced its own cache entry per replica.

        Called when user code reads the replica id or the number of replicas, or calls a merge under a transform. The
        helper's trace then contains replica-specific constants, so JAX must not reuse it for other replicas.
        """
        if not self.in_place and recording_parent(current_trace()) is not self.base_trace:
            jit_key.tell_replicas_apart(self.trace_key(local))

    def note_summed(self, called: str, gradients: Sequence[Any]) -> None:  # noqa: B027
        """Records gradients that an optimizer sums over replicas. Compiled runs use them to check the loss scale."""

    @abc.abstractmethod
    def run_merge(self, merge: Merge, payload: Any) -> Any:
        """Blocks this replica until all replicas have arrived and the merge has run. Returns its result."""

    @abc.abstractmethod
    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Reduces arrays over all replicas. Each array has one component per local replica. Cross-replica context."""

    @abc.abstractmethod
    def all_reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Reduces like `reduce`, with a result per local replica: equal values, each with its own gradient."""

    @abc.abstractmethod
    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        """Concatenates the arrays of all replicas along `axis`. Cross-replica context."""

    def gather_each(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[list[Any]]:
        """Gathers like `gather`, with a result per local replica: equal values, each with its own gradient."""
        whole = self.gather(arrays, axis)
        return [[self.reduced_component(array, k) for k in range(self.num_local)] for array in whole]

    def first(self, components: Sequence[Any]) -> Any:
        """Broadcasts the first replica's component, from one component per local replica. Cross-replica context."""
        return self.gather([[component[None] for component in components]], 0)[0][0]

    @abc.abstractmethod
    def group(self, components: Sequence[Any]) -> Any:
        """Returns the cross-replica value of one component per local replica."""

    @abc.abstractmethod
    def is_shared(self, components: Sequence[Any]) -> bool:
        """Returns whether all components (one per local replica) are the same object."""

    @abc.abstractmethod
    def component(self, value: Any, local: int) -> Any:
        """Returns a local replica's component of a cross-replica value."""

    def components_each(self, value: Any) -> list[Any]:
        """Returns what each local replica receives of a merge's result, each with its own gradient."""
        return [self.component(value, local) for local in range(self.num_local)]

    @abc.abstractmethod
    def reduced_component(self, value: Any, local: int) -> Any:
        """Returns a local replica's copy of the result of a collective: a per-replica value, equal on all replicas."""


def run_merge(merge: Merge, payload: list[Any]) -> list[Any]:
    """Waits for the other local replicas at `merge` and returns this replica's result.

    Context: replica context. With one local replica the merge runs in place, so that enclosing tapes record its
    operations like any others.

    Raises:
        MergeError: The call is under a JAX transform (`jit`, `scan`, `cond`, `vmap`, ...) inside the replica function,
            and is not an `all_reduce` or `all_gather`.
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
        rule="a transform supports only all_reduce and all_gather; other merges run Python code once for all replicas, "
        "so they must be called in the replica function itself or under a GradientTape",
        remedy="call it outside the jit/scan/cond/vmap, on the value that the transform returns",
    )
