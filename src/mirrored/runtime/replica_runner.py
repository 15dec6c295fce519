"""`ReplicaRunner`: the interface of the objects that execute one `Strategy.run`."""

from __future__ import annotations

import abc
import functools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrored._jax import caches
from mirrored._jax.traces import Tracer, current_trace, trace_below_tapes
from mirrored._typing import Leaf
from mirrored.runtime.ambient import ReadListener, ambient
from mirrored.runtime.overlay_store import OverlayStore
from mirrored.values import structures
from mirrored.values.distributed_values import Mirrored, PerReplica

if TYPE_CHECKING:
    import jax

    from mirrored.runtime.merge import Merge
    from mirrored.runtime.variable_store import ReplicaStore, VariableStore
    from mirrored.topology.device_assignment import DeviceAssignment


class ReplicaRunner(abc.ABC):
    """One `Strategy.run` in progress: executes its replicas and their collectives.

    Attributes:
        device_assignment: The devices of the replicas.
        num_local: The number of local replicas: those of this process in eager mode, of one device in compiled mode.
        stands_for_others: Whether the local replicas represent those of every device (one SPMD program for all).
        in_place: Whether there is one local replica and no threads, so that merges run where they are called.
        writes_halves: Whether, with one local replica, collectives under transforms are recorded for a later fusion, as
            with several. True if the reduction algorithm does not support every kind of derivative.
        base_trace: The JAX trace that was current when the replicas started.
        run_trace: The JAX trace in which the innermost run started. It differs from the `base_trace` inside of a
            `merge_call` that a tape of the replicas records: JAX differentiates the merge, and with it the run.
        store: The variable store of the run.
        created: The variables that the replicas have created, by the line of user code and its number of executions.
        creations: The number of variables that each local replica has created at a line.
        outer_listeners: The tapes and stores that were open when the run began.
    """

    device_assignment: DeviceAssignment
    num_local: int
    stands_for_others: bool
    in_place: bool
    writes_halves: bool = False
    base_trace: Any
    run_trace: Any
    store: ReplicaStore
    created: dict[tuple[str, int], Any]
    creations: dict[tuple[int, str], int]
    outer_listeners: tuple[ReadListener, ...] = ()

    def current_store(self) -> VariableStore:
        """Returns the variable store for replicas that start now: the store of the `run`, or an `OverlayStore` over it.

        The overlay is used in a merge that is differentiated.
        """
        here = ambient()
        return here.store if here.runner is self and isinstance(here.store, OverlayStore) else self.store

    def trace_key(self, local: int) -> Hashable:
        """Returns the key that separates one replica's entries in JAX's tracing caches from those of other replicas."""
        return self.device_assignment.num_replicas, local

    def separate_traces(self, local: int) -> None:
        """Makes JAX cache separate traces per replica, if a jitted function is being traced inside a replica.

        Called when user code reads the replica id or the number of replicas, or calls a merge under a transform. The
        helper's trace then contains replica-specific constants, so JAX must not reuse it for other replicas.
        """
        if not self.in_place and trace_below_tapes(current_trace()) is not trace_below_tapes(self.base_trace):
            caches.separate_replicas(self.trace_key(local))

    def note_summed(  # noqa: B027
        self, called: str, rows: Sequence[Sequence[Any]], *, are_divided: bool = False
    ) -> None:
        """Records which gradients an optimizer sums over replicas, so that a compiled `run` can check the loss scale.

        Args:
            called: The optimizer's method.
            rows: The gradients of the local replicas, for each variable.
            are_divided: Whether the method also divides the sums by the number of examples of all replicas.
        """

    @functools.cached_property
    def unchanged(self) -> list[tuple[Any, Any, Exception]]:
        """What replicas have assigned to random keys, what they read, and the error to raise if these are not equal."""
        return []

    def note_unchanged(self, value: jax.Array, own: jax.Array, error: Exception) -> None:
        """Records that a replica assigns a value that must be the one it reads, which the end of the run checks.

        Not at once: a transform of NNX assigns the values that it returns while the module has no attributes.

        Args:
            value: The assigned value.
            own: The value that the replica reads.
            error: What the run raises if they are not equal.
        """
        if trace_below_tapes(current_trace()) is trace_below_tapes(self.base_trace):
            self.unchanged.append((value, own, error))

    def sent(self, payload: Sequence[Leaf]) -> list[Any]:
        """Returns the payload of a local replica for a collective or `merge_call`, given what the replica passes."""
        return list(payload)

    def operands(self, payloads: Sequence[list[Any]]) -> list[list[Any]]:
        """Returns the operands of a collective or `merge_call` that a tape of the replicas differentiates.

        An outer derivative, of the code around the run, counts what each replica passes, and no empty slot.
        """
        return list(payloads)

    @abc.abstractmethod
    def run_merge(self, merge: Merge, payload: list[Any]) -> Any:
        """Waits until all replicas have called this collective, and returns this replica's result."""

    @abc.abstractmethod
    def reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Reduces arrays over all replicas, given the local replicas' values; returns one result per array."""

    @abc.abstractmethod
    def all_reduce(self, op: Any, arrays: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Reduces arrays over all replicas and returns one copy of each result per local replica.

        Each copy has a gradient of its own. Otherwise it is like `reduce`.
        """

    def all_reduce_given(self, op: Any, columns: Sequence[Sequence[Any] | None]) -> list[list[Any] | None]:
        """Like `all_reduce`, for arrays that some replicas lack; returns None for an array that no local replica has.

        Args:
            op: The reduction.
            columns: The local replicas' components of each array; None if none of these replicas has it.
        """
        arrays = [column for column in columns if column is not None]
        results = iter(self.all_reduce(op, arrays) if arrays else [])
        return [None if column is None else next(results) for column in columns]

    def are_equal(self, numbers: Sequence[Any]) -> bool:
        """Returns whether a Python number is equal on all replicas, given the numbers of the local replicas."""
        return all(number == numbers[0] for number in numbers)

    @abc.abstractmethod
    def gather(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[Any]:
        """Concatenates the arrays of all replicas along `axis`, given the local replicas' arrays."""

    def gather_each(self, arrays: Sequence[Sequence[Any]], axis: int) -> list[list[Any]]:
        """Like `gather`, but returns one copy of each result per local replica; the copies have separate gradients."""
        whole = self.gather(arrays, axis)
        return [[self.reduced_component(array, k) for k in range(self.num_local)] for array in whole]

    def first(self, components: Sequence[Any]) -> Any:
        """Broadcasts the first replica's array to all replicas, given one array per local replica."""
        return self.gather([[component[None] for component in components]], 0)[0][0]

    @abc.abstractmethod
    def group(self, components: Sequence[Any]) -> Any:
        """Combines the values of the local replicas into one cross-replica value, such as a `PerReplica`."""

    def group_argument(self, components: Sequence[Any]) -> Any:
        """Combines the local replicas' values of an argument of `merge_call` into one cross-replica value."""
        return self.group(components)

    @abc.abstractmethod
    def is_shared(self, components: Sequence[Any]) -> bool:
        """Returns whether all local replicas hold the same Python object."""

    def are_shared(self, columns: Sequence[Sequence[Any]]) -> list[bool]:
        """Returns for each leaf of a structure whether all replicas hold the same Python object.

        A column has the local replicas' values of one leaf.
        """
        return [self.is_shared(column) for column in columns]

    @abc.abstractmethod
    def component(self, value: Leaf, local: int) -> Any:
        """Returns one local replica's value from a cross-replica value, such as a `PerReplica`."""

    def components_each(self, value: Leaf) -> list[Any]:
        """Returns the value of each local replica, given a cross-replica value that `merge_call` returns."""
        return [self.component(value, local) for local in range(self.num_local)]

    @functools.cached_property
    def _merged(self) -> dict[int, tuple[Any, object]]:
        return {}

    def note_merged(self, value: Leaf, components: Sequence[Any], *, is_taped: bool) -> None:
        """Records that the replicas' tracers or NumPy arrays are one object, which `merge_call` returned to all.

        As in eager runs, a tracer that tapes of the replicas record (`is_taped`) is each replica's own.
        """
        kinds = (np.ndarray, np.generic) if is_taped else (np.ndarray, np.generic, Tracer)
        if isinstance(value, PerReplica) or not any(isinstance(one, kinds) for one in components):
            return
        # A tracer that a variable has as its new value may also come from a read of that variable.
        whole = value.value if isinstance(value, Mirrored) else value
        if any(self.store.local(entry.variable, 0) is whole for entry in self.store.staged.values()):
            return
        for component in components:  # the last one may be a copy, also of a tracer that `merge_call` returns twice
            self._merged[id(component)] = (component, whole)  # kept, so that the id is not reused

    def is_merged(self, components: Sequence[Any]) -> bool:
        """Returns whether the local replicas' values are copies of one object returned by `merge_call`.

        The copies are tracers, which `note_merged` has recorded.
        """
        noted = [self._merged.get(id(component), (None, None))[1] for component in components]
        return noted[0] is not None and structures.identical(noted)

    def isolated(self, values: Sequence[Leaf]) -> list[Any]:
        """Puts fusion boundaries around values that enter or leave a `merge_call`, if results must be bit-identical."""
        return list(values)

    @abc.abstractmethod
    def reduced_component(self, value: jax.Array, local: int) -> Any:
        """Returns a local replica's copy of an all-reduce result, which is equal on all replicas."""
