"""Variable stores: where code reads and assigns variables.

- no store (``ambient().store is None``): the variables' storage, at once;
- `FunctionStore`: a function is being traced; a read gives a capture tracer, a write is staged as an extra result;
- `ReplicaStore`: one `run`; every local replica has its own staged values, committed together at the end or dropped.

A store reaches the variables' storage only when its run or function succeeds: a failed one leaves them unchanged.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from mirrored._jax import jit_key
from mirrored._jax.capture import CaptureTracer
from mirrored._jax.traces import current_trace, recording_parent
from mirrored.runtime.ambient import ambient
from mirrored.runtime.listeners import announce_read


class State(Protocol):
    """What a frame needs of a variable."""

    name: str

    @property
    def per_replica(self) -> bool:
        """Whether each replica has a component of its own (sync-on-read)."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one component."""
        ...

    @property
    def dtype(self) -> Any:
        """Of one component."""
        ...

    def stored(self) -> Any:
        """The whole value in storage: mirrored, or stacked ``[replicas, ...]`` if per replica."""
        ...

    def stored_component(self, replica: int) -> Any:
        """One replica's component in storage, on that replica's device."""
        ...

    def store(self, value: Any) -> None:
        """Replaces the whole value in storage."""
        ...

    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the whole value."""
        ...


class Bookkeeping:
    """Marks what refers to a variable for our own sake only: it does not keep a user's variable in use."""


class Created(list[Any], Bookkeeping):
    """The variables made during a trace."""


class Held(NamedTuple):
    """A variable and what a trace knows it by: its capture tracer, or its newest value."""

    variable: Any
    value: Any


class VariableStore(abc.ABC):
    """Where variables are read from and written to, short of their storage.

    Attributes:
        captures: Whether reads under nested transforms are captured (the frame belongs to a trace).
        base_trace: The JAX trace that the frame belongs to.
        num_local: How many local replicas' components it tells apart.
        under_tape: Whether a tape is around what is traced: a value read after an assignment is the variable's.
        rereads: Whether a value was read after an assignment.
    """

    captures: bool
    base_trace: Any = None
    num_local: int = 1
    under_tape: bool = False
    rereads: bool = False

    def outermost(self) -> VariableStore:
        """The frame of the function or run that this one is a part of: itself, but for a branch or a loop body."""
        return self

    def on_read(self, variable: Any, value: Any) -> Any:
        """As a `ReadListener`: hands the value on, and notes that a jitted helper that is being traced captures it."""
        trace = recording_parent(current_trace())
        if trace is not self.base_trace and trace is not getattr(ambient().store, "base_trace", None):
            jit_key.note_read()
        return value

    def on_write(self, variable: Any) -> None:
        """As a `ReadListener`: a jitted helper that has captured the old value must be traced again."""
        jit_key.renew()

    def tracks(self, value: Any) -> bool:
        """As a `ReadListener`: a frame records no operations."""
        return False

    @abc.abstractmethod
    def whole(self, variable: Any) -> Any:
        """The whole value: mirrored, or stacked ``[replicas, ...]`` if per replica. Cross-replica context."""

    @abc.abstractmethod
    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        """Stages the whole value. Cross-replica context."""

    @abc.abstractmethod
    def local(self, variable: Any, replica: int) -> Any:
        """A local replica's component. Replica context."""

    @abc.abstractmethod
    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        """Stages a local replica's component. Replica context."""

    @abc.abstractmethod
    def created(self, variable: Any) -> None:
        """`variable` was made while this frame was current: its storage is new, whatever happens to the frame."""


@jax.custom_jvp
def read_again(newest: Any, before: Any) -> Any:
    """A variable's `newest` value, whose derivative is that of its value `before`.

    An assignment has no derivative: what is read after it is the variable, not what the value was computed from. To a
    tape around a compiled function or run all of that is one operation, which has the variable as an operand.
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
        under_tape: As the attribute.

    Attributes:
        captured: The variables that were read, each with its capture tracer, in order of first read.
        staged: The variables that were assigned, each with its newest value.
        new: Variables created during the trace.
        as_written: Whether a run in it asks to be compiled as written.
        layout: Of a run in it, None before.
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
        variable: Which.
        locals: The newest component of each local replica, None where a replica has not assigned it.
        where: The line of each component's last assignment.
        whole: The mirrored value that a merge assigned last, if no replica has assigned it since.
    """

    variable: Any
    locals: list[Any]
    where: list[str]
    whole: Any = None


class ReplicaStore(VariableStore):
    """One run: local replicas with their own staged values over an outer frame (or the storage).

    Args:
        num_local: How many replicas run here.
        captures: Whether the run is being traced.
        base: A local replica's component as it was before the run.
        whole_base: The whole value as it was before the run.
        join: The whole value of a variable whose local components have been assigned (mirrored: checked equal).
        split: A local replica's component of a whole value.
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
