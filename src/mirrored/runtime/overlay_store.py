"""`OverlayStore`: collects the variable assignments of a `merge_call` while a tape differentiates the call.

A tape records a merge (`merge_call`, a collective) as one operation, which `jax.vjp` differentiates (`tape.merging`).
While `jax.vjp` differentiates a function, the values that the function assigns are tracers of that differentiation.
Stored in a variable, or in the store of the enclosing run, they would leak from the transform. An overlay store
collects them instead, and reads of the assigned variables return them. The differentiated function returns the
collected tracers (`values`) as auxiliary results of `jax.vjp`. When the differentiation is complete, these results are
values of the enclosing trace (concrete arrays in eager code), and `flush` assigns them to the variables in the store
below. An assignment has no derivative, so a read that follows it in the function is a constant of the differentiation.

`tf.recompute_grad` likewise uses a `RecomputingStore` for `jax.checkpoint`, which traces a function. There the gradient
of a read that follows an assignment flows to the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from mirrored._blocks import contextmanager
from mirrored._jax import caches
from mirrored._jax.boxes import Array
from mirrored._jax.placement import movable
from mirrored._jax.traces import current_trace, is_eval_below
from mirrored.errors import TransformError
from mirrored.runtime.ambient import ReadableVariable, ambient, within
from mirrored.runtime.entry_point import restoring
from mirrored.runtime.staged_values import VariableLike, read_assigned, without_derivative
from mirrored.runtime.variable_store import VariableStore, is_under_tape

if TYPE_CHECKING:
    from mirrored.runtime.replica_runner import ReplicaRunner


class OverlayStore(VariableStore):
    """A variable store that stages assignments, on top of another store, until a differentiation is complete.

    Args:
        below: The store to read variables from that are not assigned here; None means their storage.
        runner: The replica runner of the enclosing run, whose store is `below`; None outside of `run`.
    """

    captures = True

    # `VariableStore` documents the methods of the interface.

    def __init__(self, below: VariableStore | None, runner: ReplicaRunner | None) -> None:
        self._below = self.outer = below
        self._runner: Any = runner
        # (id of a variable, local replica) -> the variable, the assigned value, and the line of the assignment. The
        # replica is None for a value of all replicas. A variable has either such an entry or entries per replica.
        self._staged: dict[tuple[int, int | None], tuple[Any, Any, str]] = {}
        self._updated: set[int] = set()  # ids of the variables that an optimizer updates
        self.num_local = 1 if runner is None else runner.num_local

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes all code in a ``with`` block, including `run`, read and assign variables in this store."""
        self.base_trace = current_trace()
        with within(store=self):
            yield

    def values(self) -> list[Any]:
        """Returns the values that have been assigned in this store so far, as tracers, in order of assignment."""
        return [jnp.asarray(value) for _, value, _ in self._staged.values()]

    def flush(self, values: Sequence[Any]) -> None:
        """Assigns the given values to the staged variables in the underlying store.

        It is called when the differentiation is complete. If there is no underlying store, and for a plain variable in
        an eager run that has not staged it, it replaces the stored value. What an optimizer updates is staged in any
        case: the replicas update it once.

        Args:
            values: The values, in the enclosing trace, of the tracers that `values` has returned, in the same order.
        """
        for ((_, replica), (variable, _, where)), value in zip(self._staged.items(), values, strict=True):
            below = self._below_of(variable)
            if below is None:
                if variable.device_assignment is None:
                    value = movable(value)  # each replica of an eager run computes on its own device
                elif replica is not None and variable.per_replica:  # the component of the only replica of an eager run
                    rows = jnp.broadcast_to(value, variable.stored_shape())
                    value = jax.device_put(rows, variable.device_assignment.sharded)
                variable.store(value, shared=True)  # user code may hold the array: a donating step must copy it
            elif replica is None:
                below.set_whole(variable, self._spread(variable, value), where)
            else:
                below.set_local(variable, replica, self._moved(value, replica), where)
                if id(variable) in self._updated:
                    below.note_update(variable)

    def _below_of(self, variable: VariableLike) -> VariableStore | None:
        """Returns the store that takes the variable's value after the differentiation; None for its storage."""
        below = self._below
        if below is None or below.captures or variable.device_assignment is not None or id(variable) in self._updated:
            return below
        return below if below.is_assigned(variable) else None

    # In an eager run each replica computes on its own device, and merges on that of this process's first replica.

    def _is_eager(self) -> bool:
        return self._runner is not None and self._below is not None and not self._below.captures

    def is_of_eager_run(self) -> bool:
        """Returns whether the store below is that of an eager run, also if other overlay stores are in between."""
        below = self._below
        while isinstance(below, OverlayStore):
            below = below._below
        return self._runner is not None and below is not None and not below.captures

    def on_device_of_merge(self, value: Any) -> Any:
        return self._near(value, 0) if self.is_of_eager_run() else value

    def _moved(self, value: jax.Array, replica: int) -> Any:
        return self._near(value, replica) if self._is_eager() else value

    def _near(self, value: jax.Array, replica: int) -> Any:
        device_assignment = self._runner.device_assignment
        device = device_assignment.device_of(device_assignment.addressable_replicas[replica])
        if device_assignment.spans_processes and type(value) is Array and not value.is_fully_addressable:
            if not value.is_fully_replicated:
                return value  # the rows of all workers' replicas, which a collective reduces
            copies = {shard.device: shard.data for shard in value.addressable_shards}
            return copies.get(device, value.addressable_data(0))
        return jax.device_put(value, device)

    def _row_of(self, replica: int) -> int:
        """Returns the index of a local replica's row in a stacked value.

        In an eager run, the value has one row per slot of all devices, otherwise one row per local replica.
        """
        return int(self._runner.device_assignment.slots.of(replica)) if self._is_eager() else replica

    def _spread(self, variable: VariableLike, value: jax.Array) -> Any:
        if not self._is_eager():
            return value
        device_assignment = self._runner.device_assignment
        if device_assignment.spans_processes and not variable.per_replica:
            if not value.is_fully_addressable:
                return value
            copies = [jax.device_put(value, device) for device in device_assignment.addressable_devices]
            return jax.make_array_from_single_device_arrays(value.shape, device_assignment.replicated, copies)
        return jax.device_put(
            value, device_assignment.sharded if variable.per_replica else device_assignment.replicated
        )

    def whole(self, variable: VariableLike) -> Any:
        if (id(variable), None) in self._staged:
            return self.on_device_of_merge(self._staged[id(variable), None][1])  # an assignment copies it to all
        if not any(key[0] == id(variable) for key in self._staged):
            return self._moved(variable.stored() if self._below is None else self._below.whole(variable), 0)
        locals_ = [self._moved(self.local(variable, replica), 0) for replica in range(self.num_local)]
        if not variable.per_replica:
            # They are equal, or the store below raises an error when it joins them.
            return locals_[0]
        if self._is_eager():
            return self._runner.device_assignment.slots.stacked(jnp.stack(locals_))
        # In a compiled run, the entries are the components of this device's replicas.
        return jnp.stack(locals_ if self._runner is None else self._runner.all_components(locals_))

    def set_whole(self, variable: VariableLike, value: jax.Array, where: str) -> None:
        self.note(variable)
        self._forget(variable)
        self._staged[id(variable), None] = (variable, self._assigned(value), where)

    def local(self, variable: VariableLike, replica: int) -> Any:
        if (id(variable), replica) in self._staged:
            return self._staged[id(variable), replica][1]
        if (id(variable), None) in self._staged:
            whole = self._staged[id(variable), None][1]
            return whole[self._row_of(replica)] if variable.per_replica else whole
        return variable.stored_component(replica) if self._below is None else self._below.local(variable, replica)

    def set_local(self, variable: VariableLike, replica: int, value: jax.Array, where: str) -> None:
        self.note(variable)
        whole = self._staged.pop((id(variable), None), None)
        if whole is not None:
            for other in range(self.num_local):
                part = whole[1][self._row_of(other)] if variable.per_replica else whole[1]
                self._staged[id(variable), other] = (variable, part, whole[2])
        self._staged[id(variable), replica] = (variable, self._assigned(value), where)

    def _assigned(self, value: jax.Array) -> Any:
        """Returns an assigned value as the store keeps it."""
        return without_derivative(value)

    def note_update(self, variable: VariableLike) -> None:
        self._updated.add(id(variable))

    def outermost(self) -> VariableStore:
        return self if self._below is None else self._below.outermost()

    def is_assigned(self, variable: VariableLike) -> bool:
        return any(key[0] == id(variable) for key in self._staged) or super().is_assigned(variable)

    def restoring(self, variable: VariableLike) -> Callable[[], None]:
        before = {key: held for key, held in self._staged.items() if key[0] == id(variable)}

        def restore() -> None:
            self._forget(variable)
            self._staged.update(before)

        return restore

    def created(self, variable: VariableLike) -> None:
        if self._below is not None:
            self._below.created(variable)

    def _forget(self, variable: VariableLike) -> None:
        for key in [key for key in self._staged if key[0] == id(variable)]:
            del self._staged[key]


class RecomputingStore(OverlayStore):
    """The overlay store of a function that `jax.checkpoint` traces: gradients of reads flow to the variables.

    For the tapes around it the function is one operation, whose operands are the variables' values from before it. So a
    read of a value that it has assigned has the derivative of a read of the value from before. It is a listener of
    reads, in front of the tapes.
    """

    def __init__(self, below: VariableStore | None, runner: ReplicaRunner | None) -> None:
        super().__init__(below, runner)
        self._outer_listeners = ambient().listeners
        self.under_tape = below is not None and below.under_tape
        self.keeps_derivatives = below is not None and below.keeps_derivatives and not is_under_tape(ambient())

    def _assigned(self, value: jax.Array) -> Any:
        return value if self.keeps_derivatives else super()._assigned(value)

    @contextmanager
    def current(self) -> Iterator[None]:
        with super().current(), within(listeners=(self, *ambient().listeners)), ExitStack() as self._isolation:
            yield

    def on_write(self, variables: Sequence[ReadableVariable]) -> None:
        """Makes JAX retrace jitted functions that have captured the old value of an assigned variable."""
        super().on_write(variables)
        self._isolate()

    def flush(self, values: Sequence[Any]) -> None:
        super().flush(values)
        if values:
            caches.renew()  # jitted functions have captured tracers of this function
            if isinstance(self._below, RecomputingStore):
                self._below._isolate()

    def _isolate(self) -> None:
        """Makes JAX retrace, and not keep, jitted functions that are called in the rest of the function.

        One that reads an assigned variable closes over a tracer of this function, which is invalid in the next call.
        """
        if not isinstance(caches.current(), tuple):  # a token of `caches.fresh`, as in every compiled function
            self._isolation.enter_context(caches.fresh())

    def on_read(self, variable: object, value: jax.Array) -> Any:
        # A framework's variable, such as Keras', is announced in place of the one that stores its value.
        assigned = next((one for one, _, _ in self._staged.values() if _is_announced_as(one, variable)), None)
        if assigned is None or self.keeps_derivatives:
            return value
        with within(store=self._below, listeners=self._outer_listeners):
            return read_assigned(assigned, value, lambda one: one.read_value())


def _is_announced_as(assigned: object, announced: object) -> bool:
    return assigned is announced or getattr(assigned, "announced", assigned) is announced


def has_traced_value(variable: object) -> bool:
    """Returns whether the newest value of a variable comes from a function that is being differentiated or traced."""
    store = ambient().store
    while isinstance(store, OverlayStore):
        if any(_is_announced_as(one, variable) for one, _, _ in store._staged.values()):
            return True
        store = store._below
    return False


def check_read_in_merge(variable: ReadableVariable) -> None:
    """Raises an error if a nested function of an eager `merge_call` under a tape would keep a variable's value.

    The tape is set aside while the merge is differentiated, so the read is not recorded, and JAX keeps the traced
    function with the value as a constant. In a compiled program the value is a tracer, with which JAX traces again.

    Raises:
        TransformError: The value would become a constant of a traced function.
    """
    store = ambient().store
    if not isinstance(store, OverlayStore) or isinstance(store, RecomputingStore):
        return
    if store.is_of_eager_run() and not is_eval_below(current_trace()):
        raise TransformError(
            f"reading {variable.name}",
            found=f"variable {variable.name!r} was read under a JAX transform in a merge_call under a tape",
            rule="JAX keeps what it has traced, with the value as a constant",
            remedy="pass variable.read_value() to the transformed function as an argument",
        )


def collecting_assignments(
    function: Callable[..., Any], *, recomputes: bool = False
) -> tuple[OverlayStore, Callable[..., Any]]:
    """Wraps `function` so that its variable assignments go to a new `OverlayStore`; returns the store and wrapper.

    The caller returns the store's `values()` as auxiliary results of the differentiation, and then calls `flush`.

    Args:
        function: The function that JAX is to differentiate or trace.
        recomputes: Whether `jax.checkpoint` traces it, so that a `RecomputingStore` is needed.
    """
    here = ambient()
    overlay = (RecomputingStore if recomputes else OverlayStore)(here.store, here.runner)

    # Restoring: an operation under an eager tape has no other entry point, and an interrupt would leave this store in
    # place, so that nothing would be assigned any more.
    @restoring
    def collecting(*args: Any, **kwargs: Any) -> Any:
        overlay._staged.clear()  # JAX may trace the function again: tracers of an earlier trace are of no use in it
        with overlay.current():
            return function(*args, **kwargs)

    return overlay, collecting
