"""Variable stores: stage the reads and assignments of variables of a run or a traced function.

- No store (``ambient().store is None``): reads and assignments access the variables' storage directly.
- `FunctionStore`: for a function that is traced. A read returns a capture tracer, and an assignment is staged as an
  extra result of the program.
- `ReplicaStore`: for one `run`. Every local replica has its own staged values, which are committed together at the end.

Staged values reach the variables' storage only if the run or function succeeds. A failure leaves variables unchanged.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from mirrored._jax import caches
from mirrored._jax.traces import CaptureTracer, current_trace, recording_parent
from mirrored.runtime.ambient import ambient, announce_read, within


class State(Protocol):
    """The interface of a variable that a store uses."""

    name: str

    @property
    def per_replica(self) -> bool:
        """Whether each replica has its own component (sync-on-read)."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one component."""
        ...

    @property
    def dtype(self) -> Any:
        """The dtype of one component."""
        ...

    def stored(self) -> Any:
        """Returns the whole stored value: mirrored, or stacked ``[replicas, ...]`` if per replica."""
        ...

    def stored_component(self, replica: int) -> Any:
        """Returns one replica's stored component, on that replica's device."""
        ...

    def store(self, value: Any) -> None:
        """Replaces the whole stored value."""
        ...

    def stored_shape(self) -> tuple[int, ...]:
        """Returns the shape of the whole stored value."""
        ...


class Bookkeeping:
    """Base of internal containers of variables: a reference from one does not count as a use by the program."""


class Created(list[Any], Bookkeeping):
    """The variables created during a trace."""


class Held(NamedTuple):
    """A variable and its value in a trace: its capture tracer, or its newest value."""

    variable: Any
    value: Any


class VariableStore(abc.ABC):
    """Stages reads and assignments of variables above their storage.

    Attributes:
        captures: Whether the store belongs to a trace, so that reads under nested transforms are captured.
        base_trace: The JAX trace that the store belongs to.
        num_local: The number of local replicas whose components it distinguishes.
        under_tape: Whether a tape records the traced code as one operation. A value that is read after an assignment
            then has the derivative of the variable (see `read_again`).
        rereads: Whether a value was read after an assignment.
    """

    captures: bool
    base_trace: Any = None
    num_local: int = 1
    under_tape: bool = False
    rereads: bool = False

    def outermost(self) -> VariableStore:
        """Returns the store of the enclosing function or run: `self`, except for the store of a branch or loop body."""
        return self

    def on_read(self, variable: Any, value: Any) -> Any:
        """Implements `ReadListener`: returns the value, and records that a jitted helper being traced captures it."""
        trace = recording_parent(current_trace())
        if trace is not self.base_trace and trace is not getattr(ambient().store, "base_trace", None):
            caches.note_read()
        return value

    def on_write(self, variable: Any) -> None:
        """Implements `ReadListener`: a jitted helper that has captured the old value must be traced again."""
        caches.renew()

    def tracks(self, value: Any) -> bool:
        """Implements `ReadListener`: a store does not record operations."""
        return False

    @abc.abstractmethod
    def whole(self, variable: Any) -> Any:
        """Returns the whole value: mirrored, or stacked ``[replicas, ...]`` if per replica. Cross-replica context."""

    @abc.abstractmethod
    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        """Stages the whole value. Cross-replica context."""

    @abc.abstractmethod
    def local(self, variable: Any, replica: int) -> Any:
        """Returns a local replica's component. Replica context."""

    @abc.abstractmethod
    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        """Stages a local replica's component. Replica context."""

    @abc.abstractmethod
    def created(self, variable: Any) -> None:
        """Records that `variable` was created under this store. Its initial value is in storage in any case."""


@jax.custom_jvp
def read_again(newest: Any, before: Any) -> Any:
    """Returns a variable's `newest` value with the derivative of its value `before`.

    An assignment has no derivative: a gradient with respect to a value that is read after it flows to the variable, not
    to the inputs of the assigned value. A tape around a compiled function or run sees all of that as one operation with
    the variable as an operand, so the operand `before` carries the gradient.
    """
    return newest


@read_again.defjvp
def _read_again_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return primals[0], tangents[1]


@jax.custom_jvp
def components_of(stacked: Any, one: Any) -> Any:
    """The `stacked` components ``[replicas, ...]`` of a sync-on-read variable, all with the derivative of `one`.

    The gradient with respect to such a variable is the sum of those with respect to its components.
    """
    return stacked


@components_of.defjvp
def _components_of_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return primals[0], jnp.broadcast_to(tangents[1], primals[0].shape)


def announced_components(variable: Any, stacked: Any) -> Any:
    """Announces the read of a sync-on-read variable's components ``[replicas, ...]``, of which a tape knows one."""
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        return stacked
    return components_of(stacked, announce_read(variable, jax.lax.stop_gradient(stacked[0])))


class FunctionStore(VariableStore):
    """One trace of a compiled function.

    Args:
        under_tape: See the attribute of `VariableStore`.

    Attributes:
        captured: The variables that were read, each with its capture tracer, in order of first read.
        staged: The variables that were assigned, each with its newest value.
        new: The variables that were created during the trace.
        as_written: Whether a run in the function must be compiled as written (see `mirrored._jax.dispatch`).
        device_assignment: The device assignment of a run in the function; None before the first run.
    """

    captures = True

    def __init__(self, *, under_tape: bool = False) -> None:
        self.under_tape = under_tape
        self.captured: dict[int, Held] = {}
        self.staged: dict[int, Held] = {}
        self.new = Created()
        self.as_written = False
        self.device_assignment: Any = None

    def whole(self, variable: Any) -> Any:
        if id(variable) in self.staged:
            self.rereads = True
            newest = self.staged[id(variable)][1]
            return _of_variable(variable, newest, self._before) if self.under_tape else newest
        return self._before(variable)

    def _before(self, variable: Any) -> Any:
        if id(variable) not in self.captured:
            tracer = CaptureTracer(variable.stored_shape(), variable.dtype, variable)
            self.captured[id(variable)] = Held(variable, tracer)
        return self.captured[id(variable)][1]

    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        self.staged[id(variable)] = Held(variable, value)

    def local(self, variable: Any, replica: int) -> Any:
        value = self.whole(variable)
        return value[replica] if variable.per_replica else value

    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        self.set_whole(variable, value[None] if variable.per_replica else value, where)

    def created(self, variable: Any) -> None:
        self.new.append(variable)


def _of_variable(variable: Any, newest: Any, before: Callable[[Any], Any]) -> Any:
    return read_again(newest, before(variable)) if jnp.issubdtype(variable.dtype, jnp.inexact) else newest


@dataclasses.dataclass
class StagedAssignment(Bookkeeping):
    """A variable's new values in a run.

    Attributes:
        variable: The variable.
        locals: The newest component of each local replica; None for a replica that has not assigned it.
        where: The line of the last assignment of each component.
        whole: The mirrored value that a merge assigned last, unless a replica has assigned the variable since.
    """

    variable: Any
    locals: list[Any]
    where: list[str]
    whole: Any = None


class ReplicaStore(VariableStore):
    """One run: each local replica's staged values, over the enclosing store or the storage.

    Args:
        num_local: The number of local replicas.
        captures: Whether the run is being traced.
        base: Returns a local replica's component from before the run.
        whole_base: Returns the whole value from before the run.
        join: Returns the whole value of a variable from its assigned local components. For a mirrored variable it
            checks that they are equal.
        split: Returns a local replica's component of a whole value.
    """

    def __init__(
        self,
        num_local: int,
        *,
        captures: bool,
        base: Callable[[Any, int], Any],
        whole_base: Callable[[Any], Any],
        join: Callable[[Any, Sequence[Any], Sequence[str]], Any],
        split: Callable[[Any, int], Any],
    ) -> None:
        self.num_local = num_local
        self.captures = captures
        self.staged: dict[int, StagedAssignment] = {}
        self.new = Created()
        self._base = base
        self._whole_base = whole_base
        self._join = join
        self._split = split

    def local(self, variable: Any, replica: int) -> Any:
        entry = self.staged.get(id(variable))
        if entry is None or entry.locals[replica] is None:
            return self._base(variable, replica)
        self.rereads = True
        newest = entry.locals[replica]
        return _of_variable(variable, newest, lambda one: self._base(one, replica)) if self.under_tape else newest

    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        entry = self._entry(variable)
        entry.locals[replica], entry.where[replica], entry.whole = value, where, None

    def whole(self, variable: Any) -> Any:
        entry = self.staged.get(id(variable))
        if entry is None:
            return self._whole_base(variable)
        if entry.whole is None:
            components = [self.local(variable, replica) for replica in range(self.num_local)]
            entry.whole = self._join(variable, components, entry.where)
        self.rereads = True
        return _of_variable(variable, entry.whole, self._whole_base) if self.under_tape else entry.whole

    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        entry = self._entry(variable)
        entry.locals = [self._split(value, replica) for replica in range(self.num_local)]
        entry.where = [where] * self.num_local
        entry.whole = value

    def created(self, variable: Any) -> None:
        self.new.append(variable)

    def _entry(self, variable: Any) -> StagedAssignment:
        entry = self.staged.get(id(variable))
        if entry is None:
            entry = self.staged[id(variable)] = StagedAssignment(
                variable, [None] * self.num_local, [""] * self.num_local
            )
        return entry


# `OverlayStore`: stages the assignments of a function while it is differentiated.
#
# During the differentiation the assigned values are its tracers, which must not reach another store. The overlay
# collects them. When the differentiation is complete, the values are known, and `settle` assigns them to the store
# below.


class OverlayStore(VariableStore):
    """A variable store over another one: reads fall through, assignments are staged until `settle`.

    Args:
        below: The store to read variables from that are not assigned here; None means their storage.
        runner: The replica runner of the enclosing run, whose store is `below`; None outside of `run`.
    """

    captures = True

    # `VariableStore` documents the methods of the interface.

    def __init__(self, below: VariableStore | None, runner: Any) -> None:
        self._below, self._runner = below, runner
        self._staged: dict[tuple[int, int | None], tuple[Any, Any, str]] = {}
        self.num_local = 1 if runner is None else runner.num_local

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes this the current store for the block, and for runs inside it."""
        self.base_trace = current_trace()
        if self._runner is not None:
            self._runner.store = self
        try:
            with within(store=self):
                yield
        finally:
            if self._runner is not None:
                self._runner.store = self._below

    def values(self) -> list[Any]:
        """Returns the assigned values, in order of assignment."""
        return [jnp.asarray(value) for _, value, _ in self._staged.values()]

    def settle(self, values: Sequence[Any]) -> None:
        """Assigns the staged variables in the store below.

        Args:
            values: The concrete values for the tracers that `values` has returned, in the same order.
        """
        for ((_, replica), (variable, _, where)), value in zip(self._staged.items(), values, strict=True):
            if self._below is None or (variable.device_assignment is None and not self._below.captures):
                variable.store(value)
            elif replica is None:
                self._below.set_whole(variable, self._spread(variable, value), where)
            else:
                self._below.set_local(variable, replica, self._moved(value, replica), where)

    # In an eager run each replica computes on its own device, and merges compute on the first replica's device.

    def _is_eager(self) -> bool:
        return self._runner is not None and self._below is not None and not self._below.captures

    def _moved(self, value: Any, replica: int) -> Any:
        return jax.device_put(value, self._runner.device_assignment.device_of(replica)) if self._is_eager() else value

    def _spread(self, variable: Any, value: Any) -> Any:
        if not self._is_eager():
            return value
        device_assignment = self._runner.device_assignment
        return jax.device_put(
            value, device_assignment.sharded if variable.per_replica else device_assignment.replicated
        )

    def whole(self, variable: Any) -> Any:
        if (id(variable), None) in self._staged:
            return self._staged[id(variable), None][1]
        if not any(key[0] == id(variable) for key in self._staged):
            return self._moved(variable.stored() if self._below is None else self._below.whole(variable), 0)
        locals_ = [self._moved(self.local(variable, replica), 0) for replica in range(self.num_local)]
        return jnp.stack(locals_) if variable.per_replica else locals_[0]

    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        self._forget(variable)
        self._staged[id(variable), None] = (variable, value, where)

    def local(self, variable: Any, replica: int) -> Any:
        if (id(variable), replica) in self._staged:
            return self._staged[id(variable), replica][1]
        if (id(variable), None) in self._staged:
            whole = self._staged[id(variable), None][1]
            return whole[replica] if variable.per_replica else whole
        return variable.stored_component(replica) if self._below is None else self._below.local(variable, replica)

    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        whole = self._staged.pop((id(variable), None), None)
        if whole is not None:
            for other in range(self.num_local):
                part = whole[1][other] if variable.per_replica else whole[1]
                self._staged[id(variable), other] = (variable, part, whole[2])
        self._staged[id(variable), replica] = (variable, value, where)

    def created(self, variable: Any) -> None:
        if self._below is not None:
            self._below.created(variable)

    def _forget(self, variable: Any) -> None:
        for key in [key for key in self._staged if key[0] == id(variable)]:
            del self._staged[key]


def assignments_apart(function: Callable[..., Any]) -> tuple[OverlayStore, Callable[..., Any]]:
    """Returns an overlay of the current store, and `function` wrapped so that its assignments are staged there."""
    here = ambient()
    overlay = OverlayStore(here.store, here.runner)

    def apart(*args: Any) -> Any:
        with overlay.current():
            return function(*args)

    return overlay, apart
