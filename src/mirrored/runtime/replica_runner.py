"""The interface of runners: one `run` in progress, its local replicas and their collectives."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from mirrored._jax import caches
from mirrored._jax.traces import current_trace, recording_parent
from mirrored._typing import Leaf
from mirrored.runtime.ambient import ambient
from mirrored.runtime.overlay_store import OverlayStore

if TYPE_CHECKING:
    import jax

    from mirrored.runtime.lockstep import Merge
    from mirrored.runtime.variable_store import ReplicaStore, VariableStore
    from mirrored.topology.device_assignment import DeviceAssignment


class ReplicaRunner(abc.ABC):
    """One `run` in progress: runs its local replicas and their merges (collectives, `merge_call`).

    Attributes:
        device_assignment: The devices of the replicas.
        num_local: The number of local replicas: those of this process in eager mode, of one device in compiled mode.
        stands_for_others: Whether the local replicas represent those of every device (one SPMD program for all).
        in_place: Whether there is one local replica and no threads, so that merges run where they are called.
        writes_halves: Whether, with one local replica, collectives under transforms are recorded for a later fusion, as
            with several. True if the reduction algorithm does not support every kind of derivative.
        base_trace: The JAX trace that was current when the replicas started.
        store: The variable store of the run.
        created: The variables that the replicas have created, by the line of user code and its number of executions.
        creations: The number of variables that each local replica has created at a line.
    """

    device_assignment: DeviceAssignment
    num_local: int
    stands_for_others: bool
    in_place: bool
    writes_halves: bool = False
    base_trace: Any
    store: ReplicaStore
    created: dict[tuple[str, int], Any]
    creations: dict[tuple[int, str], int]

    def current_store(self) -> VariableStore:
        """Returns the store for replicas that start now: `store`, or its overlay in a merge that is differentiated."""
        here = ambient()
        return here.store if here.runner is self and isinstance(here.store, OverlayStore) else self.store

    def trace_key(self, local: int) -> Hashable:
        """Returns the token that separates a local replica's entries in JAX's tracing caches from those of others."""
        return self.device_assignment.num_replicas, local

    def tell_apart(self, local: int) -> None:
        """Gives every jitted helper its own cache entry per replica, if JAX is tracing one now.

        Called when user code reads the replica id or the number of replicas, or calls a merge under a transform. The
        helper's trace then contains replica-specific constants, so JAX must not reuse it for other replicas.
        """
        if not self.in_place and recording_parent(current_trace()) is not self.base_trace:
            caches.tell_replicas_apart(self.trace_key(local))

    def note_summed(self, called: str, gradients: Sequence[Any]) -> None:  # noqa: B027
        """Records gradients that an optimizer sums over replicas. Compiled runs use them to check the loss scale."""

    @abc.abstractmethod
    def run_merge(self, merge: Merge, payload: list[Any]) -> Any:
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
        """Returns the value in cross-replica context whose components on the local replicas are `components`."""

    @abc.abstractmethod
    def is_shared(self, components: Sequence[Any]) -> bool:
        """Returns whether all components (one per local replica) are the same object."""

    @abc.abstractmethod
    def component(self, value: Leaf, local: int) -> Any:
        """Returns a local replica's component of a cross-replica value."""

    def components_each(self, value: Leaf) -> list[Any]:
        """Returns each local replica's component of a merge's result, such that each has its own gradient."""
        return [self.component(value, local) for local in range(self.num_local)]

    @abc.abstractmethod
    def reduced_component(self, value: jax.Array, local: int) -> Any:
        """Returns a local replica's copy of a collective's result `value`, which is equal on all replicas."""
