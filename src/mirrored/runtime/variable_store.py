"""Variable stores: objects that hold the values assigned to variables in a `run` or trace, until it ends.

- No store (``ambient().store is None``): reads and assignments access the variables' storage directly.
- `FunctionStore`: for a function that is traced. An assignment is staged as an extra result of the program. A read
  returns the staged value, or a capture tracer before the first assignment.
- `ReplicaStore`: for one `run`. Every local replica has its own staged values, which are committed together at the
  end: an eager run writes them to storage; a compiled run returns them as results, which become the staged values of
  the enclosing store.
- `OverlayStore` (`mirrored.runtime.overlay_store`): for a function that JAX differentiates. It holds assignments back
  until the differentiation is complete.
- `BlockStore` (`mirrored.tf._ops.blocks`): for the body of a loop or branch of `mirrored.tf`, as carries or results.
- `ScopeStore` (`mirrored.integrations.keras.scope_store`): for a Keras `StatelessScope`.

Staged values reach the variables' storage only if the run or function succeeds. A failure leaves variables unchanged.
There is one exception: in an eager run of several replicas, a plain variable (one of no strategy) has no staged values,
unless an optimizer updates it in the replicas. If the run fails, its new values remain, except those of a failed merge.
"""

from __future__ import annotations

import abc
import dataclasses
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from mirrored._jax import caches
from mirrored._jax.traces import CaptureTracer, Tracer, belongs_to, current_trace, keeps_dtype, trace_below_tapes
from mirrored._typing import Leaf
from mirrored.errors import VariableError
from mirrored.runtime.ambient import Ambient, ReadableVariable, ambient
from mirrored.runtime.rollback import StagedRollback
from mirrored.runtime.staged_values import Captured, Created, Held, StagedAssignment, VariableLike, read_assigned

K = TypeVar("K")
V = TypeVar("V")


class VariableStore(StagedRollback):
    """Base class of variable stores: objects that hold the values assigned in a `run` or trace, until it ends.

    Attributes:
        captures: Whether the store belongs to the trace of a function or run. A read may then return a tracer, which
            JAX hoists as a constant out of nested transforms (`jit`, `scan`, ...).
        base_trace: The JAX trace that the store belongs to.
        outer: The store of the function or block around a run or block, or below an overlay.
        num_local: The number of local replicas whose components it distinguishes.
        under_tape: Whether a tape records the traced code as one operation. A value that is read after an assignment
            then has the derivative of the variable (see `with_gradients_to_old`).
        rereads: Whether a value was read after an assignment.
        embeds_arrays: Whether a transform in a run closes over a concrete array that no tape watches during the trace.
        has_fallback: Whether the trace may be given up, because the function can run eagerly instead.
        differentiated: The variables, by `id`, whose newest assignment has a derivative (see `on_reassign`).
        keeps_derivatives: Whether gradients flow through all assignments, as in Keras' own step.
    """

    captures: bool
    base_trace: Any = None
    outer: VariableStore | None = None
    num_local: int = 1
    under_tape: bool = False
    rereads: bool = False
    embeds_arrays: bool = False
    has_fallback: bool = False
    differentiated: Set[int] = frozenset()
    keeps_derivatives: bool = False

    @property
    def aggregates(self) -> bool:
        """Whether the store holds a sync-on-read variable's aggregated value instead of one value per replica."""
        return self.outer is not None and self.outer.aggregates

    def note_reduction(self, *, bit_identical: bool) -> None:
        """Records that the traced code reduces values over replicas, and whether results must be bit-identical."""
        if self.outer is not None:
            self.outer.note_reduction(bit_identical=bit_identical)

    def is_assigned(self, variable: VariableLike) -> bool:
        """Returns whether a variable was assigned in this store or, earlier, in an enclosing function or `run`."""
        return self.outer is not None and self.outer.is_assigned(variable)

    def outermost(self) -> VariableStore:
        """Returns the variable store of the enclosing function or `run`, even from inside a branch or loop body."""
        return self

    def on_read(self, variable: object, value: jax.Array) -> Any:
        """Returns a variable's value unchanged; records reads that are made under a nested JAX transform."""
        trace = trace_below_tapes(current_trace())
        if trace is not self.base_trace and trace is not getattr(ambient().store, "base_trace", None):
            caches.note_read()
        return value

    def on_write(self, variables: Sequence[ReadableVariable]) -> None:
        """Makes JAX retrace jitted functions that may have captured the old value of an assigned variable."""
        caches.renew()
        if self.differentiated:
            self.differentiated -= set(map(id, variables))

    def on_reassign(self, variable: ReadableVariable, value: object) -> None:
        """Records whether a variable's newest assignment has a derivative: it has none if `value` is None."""
        self.differentiated = self.differentiated - {id(variable)} | (set() if value is None else {id(variable)})

    def reread(self, variable: VariableLike, newest: Any, before: Callable[[VariableLike], Any]) -> Any:
        """Returns the newly assigned value of a variable.

        An ordinary assignment has no derivative, so gradients flow to the value that `before` returns. They flow
        through an assignment by Flax NNX, which differentiates assignments. Without a tape, they need not be routed.
        """
        self.rereads = True
        if not self.under_tape or id(variable) in self.differentiated:
            return newest
        return read_assigned(variable, newest, before)

    def on_device_of_merge(self, value: Any) -> Any:
        """Moves an aggregate over all replicas to the device that executes the current collective or `merge_call`."""
        return value

    def tracks(self, value: object) -> bool:
        """Returns False: a variable store, unlike a tape, does not record operations."""
        return False

    @abc.abstractmethod
    def whole(self, variable: VariableLike) -> Any:
        """Returns a variable's value for all replicas: one mirrored array, or one row per replica ``[replicas, ...]``.

        Context: cross-replica.
        """

    @abc.abstractmethod
    def set_whole(self, variable: VariableLike, value: jax.Array, where: str) -> None:
        """Assigns a variable's value for all replicas at once, in cross-replica context."""

    @abc.abstractmethod
    def local(self, variable: VariableLike, replica: int) -> Any:
        """Returns one local replica's value of a variable, in replica context."""

    @abc.abstractmethod
    def set_local(self, variable: VariableLike, replica: int, value: jax.Array, where: str) -> None:
        """Assigns one local replica's value of a variable in this store, in replica context."""

    def note_update(self, variable: VariableLike) -> None:
        """Records that a replica has assigned the update of an optimizer, which is the same on all replicas."""

    @abc.abstractmethod
    def created(self, variable: VariableLike) -> None:
        """Records that `variable` was created while this store was current.

        Its initial value is in storage in any case.
        """


class FunctionStore(VariableStore):
    """The variable store of a compiled function during its trace; holds the values that the function reads and assigns.

    Args:
        under_tape: See the attribute of `VariableStore`.
        aggregates: Whether a sync-on-read variable has one value, the aggregate of its components, as in a program that
            is exported: its variables have no components after loading.

    Attributes:
        captured: The variables that were read, each with its capture tracer, in order of first read.
        staged: The variables that were assigned, each with its newest value.
        new: The variables that were created during the trace.
        bit_identical: Whether the results of a run must be bit-identical (see `mirrored._jax.bit_identical`).
        device_assignment: The device assignment of a run in the function; None before the first run.
    """

    captures = True

    def __init__(self, *, under_tape: bool = False, aggregates: bool = False) -> None:
        self.under_tape = under_tape
        self._aggregates = aggregates
        self.captured: dict[int, Held] = {}
        self.staged: dict[int, Held] = {}
        self.new = Created()
        self.bit_identical = False
        self.device_assignment: Any = None

    @property
    def aggregates(self) -> bool:
        """Whether the store holds a sync-on-read variable's aggregated value instead of one value per replica."""
        return self._aggregates

    def note_reduction(self, *, bit_identical: bool) -> None:
        """Records whether the results of the compiled function must be bit-identical.

        They must be if one of its reductions requires it.
        """
        self.bit_identical |= bit_identical

    def whole(self, variable: VariableLike) -> Any:
        if id(variable) in self.staged:
            return self.reread(variable, self.staged[id(variable)][1], self._before)
        return self._before(variable)

    def _before(self, variable: VariableLike) -> Any:
        if id(variable) not in self.captured:
            refuse_64_bits(variable)
            has_components = variable.per_replica and not self._aggregates
            shape = variable.stored_shape() if has_components else variable.component_shape
            tracer = CaptureTracer(shape, variable.dtype, variable)
            self.captured[id(variable)] = Held(variable, tracer)
        return self.captured[id(variable)][1]

    def set_whole(self, variable: VariableLike, value: jax.Array, where: str) -> None:
        refuse_64_bits(variable)
        self.note(variable)
        self.staged[id(variable)] = Held(variable, value)

    def is_assigned(self, variable: VariableLike) -> bool:
        return id(variable) in self.staged

    def restoring(self, variable: VariableLike) -> Callable[[], None]:
        return restoring_item(self.staged, id(variable), self.staged.get(id(variable)))

    def local(self, variable: VariableLike, replica: int) -> Any:
        value = self.whole(variable)
        return value[replica] if variable.per_replica else value

    def set_local(self, variable: VariableLike, replica: int, value: jax.Array, where: str) -> None:
        self.set_whole(variable, value[None] if variable.per_replica else value, where)

    def created(self, variable: VariableLike) -> None:
        self.new.append(variable)


def refuse_64_bits(variable: VariableLike, called: str = "function") -> None:
    """Raises an error if a function or assignment computes with a variable of 64 bits, but JAX computes in 32 bits.

    XLA would refuse the program, or the variable would get a value of 32 bits.

    Raises:
        VariableError: JAX has no arrays of the variable's dtype here.
    """
    if not keeps_dtype(variable.dtype):
        raise VariableError(
            called,
            found=f"it uses variable {variable.name!r} of dtype {variable.dtype}, which was created in 64-bit mode",
            rule="outside of 64-bit mode JAX computes in 32 bits",
            remedy="make the call in `with jax.enable_x64(True):`, or set jax_enable_x64 for the whole program",
        )


def created_in_function(store: VariableStore | None) -> Created:
    """Returns the list of the variables that the trace of the function around `store` has created so far."""
    while store is not None and not isinstance(store, FunctionStore):
        store = store.outer
    return Created() if store is None else store.new


def restoring_item(items: dict[K, V], key: K, item: V | None) -> Callable[[], None]:
    """Returns a function that sets ``items[key]`` to `item` or, if `item` is None, removes the key."""

    def restore() -> None:
        if item is None:
            items.pop(key, None)
        else:
            items[key] = item

    return restore


def is_under_tape(here: Ambient) -> bool:
    """Returns whether a gradient tape listens to variable reads in the thread context `here`."""
    return any(not isinstance(listener, VariableStore) for listener in here.listeners)


class ReplicaStore(VariableStore):
    """The variable store of one `run`: holds the values that its replicas assign, until the `run` commits them.

    A subclass defines where the values from before the run come from, and how components and whole values convert.

    Args:
        num_local: The number of local replicas.
    """

    def __init__(self, num_local: int) -> None:
        self.num_local = num_local
        self.staged: dict[int, StagedAssignment] = {}

    @abc.abstractmethod
    def before(self, variable: VariableLike, replica: int) -> Any:
        """Returns the value that a variable had on one local replica before the `run`."""

    @abc.abstractmethod
    def whole_before(self, variable: VariableLike) -> Any:
        """Returns a variable's value before the `run`: one array if mirrored, else all replicas' stacked values."""

    @abc.abstractmethod
    def join(self, variable: VariableLike, components: Sequence[Any], where: Sequence[str]) -> Any:
        """Combines the values that local replicas have assigned to a variable into a value for all replicas.

        Raises:
            ReplicaDivergenceError: The components of a mirrored variable differ.
        """

    @abc.abstractmethod
    def split(self, value: jax.Array, replica: int) -> Any:
        """Returns one local replica's value of a variable, given the variable's value for all replicas."""

    def local(self, variable: VariableLike, replica: int) -> Any:
        entry = self.staged.get(id(variable))
        if entry is None or entry.locals[replica] is None:
            return self.before(variable, replica)
        return self.reread(variable, entry.locals[replica], lambda one: self.before(one, replica))

    def set_local(self, variable: VariableLike, replica: int, value: jax.Array, where: str) -> None:
        entry = self._entry(variable)
        entry.locals[replica], entry.where[replica], entry.whole = value, where, None

    def whole(self, variable: VariableLike) -> Any:
        entry = self.staged.get(id(variable))
        if entry is None:
            return self.whole_before(variable)
        whole = entry.whole
        if whole is None:
            components = [self.local(variable, replica) for replica in range(self.num_local)]
            whole = self.join(variable, components, entry.where)
            # A tracer of a jitted function, or of a loop body, is valid only there. `join` leaves out the replication
            # check for a replica that reads another component, so a merge must join again.
            is_of_run = not isinstance(whole, Tracer) or trace_below_tapes(current_trace()) is self.base_trace
            if is_of_run and ambient().replica is None:
                entry.whole = whole
        return self.reread(variable, whole, self.whole_before)

    def set_whole(self, variable: VariableLike, value: jax.Array, where: str) -> None:
        entry = self._entry(variable)
        entry.locals = [self.split(value, replica) for replica in range(self.num_local)]
        entry.where = [where] * self.num_local
        entry.whole = value

    def note_update(self, variable: VariableLike) -> None:
        self.staged[id(variable)].is_update = True

    def created(self, variable: VariableLike) -> None:
        if self.outer is not None:
            self.outer.created(variable)

    def is_assigned(self, variable: VariableLike) -> bool:
        return id(variable) in self.staged or super().is_assigned(variable)

    def restoring(self, variable: VariableLike) -> Callable[[], None]:
        entry = self.staged.get(id(variable))
        copied = entry and dataclasses.replace(entry, locals=list(entry.locals), where=list(entry.where))
        return restoring_item(self.staged, id(variable), copied)

    def restoring_local(self, variable: VariableLike, replica: int) -> Callable[[], None]:
        entry = self.staged.get(id(variable))
        value, where = (None, "") if entry is None else (entry.locals[replica], entry.where[replica])

        def restore() -> None:
            now = self.staged.get(id(variable))
            if now is not None:
                now.locals[replica], now.where[replica], now.whole = value, where, None
                if all(one is None for one in now.locals):
                    del self.staged[id(variable)]

        return restore

    def _entry(self, variable: VariableLike) -> StagedAssignment:
        self.note(variable)
        entry = self.staged.get(id(variable))
        if entry is None:
            entry = self.staged[id(variable)] = StagedAssignment(
                variable, [None] * self.num_local, [""] * self.num_local
            )
        return entry


class LocalReplicas(Protocol):
    """Protocol of replica runners that gather and split the values of local replicas."""

    num_local: int
    stands_for_others: bool

    def all_components(self, components: Sequence[Any]) -> list[Any]:
        """All-gathers an array: returns all replicas' values, given those of this device's replicas."""
        ...

    def component(self, value: Leaf, local: int) -> Any:
        """Returns one local replica's value from a cross-replica value, such as a `PerReplica`."""
        ...


class TracedReplicaStore(ReplicaStore):
    """The variable store of a compiled `run` during its trace; values that are read become operands of the program.

    Only a value from before the run becomes an operand, when it is first read.

    Args:
        replicas: The local replicas of the run.

    Attributes:
        separates_reads: Whether replicated values are captured once per local replica, so that each has its own
            cotangent.
        joined: The components of mirrored variables that merges have read as one value. They must be equal on all
            replicas.
    """

    captures = True

    def __init__(self, replicas: LocalReplicas) -> None:
        super().__init__(replicas.num_local)
        self._replicas: LocalReplicas = weakref.proxy(replicas)  # no cycle: freed with the run
        self.separates_reads = False
        self.joined: list[StagedAssignment] = []
        self._captured: dict[tuple[int, int | None], CaptureTracer] = {}

    def capture(self, variable: VariableLike, local: int | None) -> CaptureTracer:
        """Returns the tracer that represents a variable's value in the traced run.

        With the index `local`, it represents the value of that local replica.
        """
        key = (id(variable), local)
        if key not in self._captured:
            self._captured[key] = CaptureTracer(variable.component_shape, variable.dtype, Captured(variable, local))
        return self._captured[key]

    def before(self, variable: VariableLike, replica: int) -> Any:
        separate = self.separates_reads and jnp.issubdtype(variable.dtype, jnp.inexact)
        return self.capture(variable, replica if variable.per_replica or separate else None)

    def whole_before(self, variable: VariableLike) -> Any:
        if not variable.per_replica:
            return self.capture(variable, None)
        return jnp.stack(self._replicas.all_components([self.capture(variable, k) for k in range(self.num_local)]))

    def join(self, variable: VariableLike, components: Sequence[Any], where: Sequence[str]) -> Any:
        if variable.per_replica:
            return jnp.stack(self._replicas.all_components(components))
        if ambient().replica is None:
            self._note_joined(variable, where)
        return components[0]

    def _note_joined(self, variable: VariableLike, where: Sequence[str]) -> None:
        # The assigned values, not those that reads return: in a jitted function these are tracers of its trace.
        assigned = self.staged[id(variable)].locals
        values = [self.before(variable, k) if value is None else value for k, value in enumerate(assigned)]
        is_one = not self._replicas.stands_for_others and all(value is values[0] for value in values)
        if not is_one and all(self._is_of_run(value) for value in values):
            self.joined.append(StagedAssignment(variable, values, list(where)))

    def _is_of_run(self, value: object) -> bool:
        return not isinstance(value, Tracer) or isinstance(value, CaptureTracer) or belongs_to(value, self.base_trace)

    def split(self, value: jax.Array, replica: int) -> Any:
        return self._replicas.component(value, replica)
