"""Frames: where variables are read from and written to.

- the root frame (``ambient().frame is None``): the variables' storage, at once;
- `FunctionFrame`: a function is being traced; a read gives a capture tracer, a write is staged as an extra result;
- `ReplicaFrame`: one `run`; every local replica has its own staged values, committed together at the end or dropped.

Nothing reaches a variable's storage before a frame ends well: a wrong program leaves all variables as they were.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from mirrored._jax import jit_key
from mirrored._jax.capture import CaptureTracer
from mirrored._jax.traces import current_trace, recording_parent
from mirrored.replicas.ambient import ambient


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


class Frame(abc.ABC):
    """Where variables are read from and written to, short of their storage.

    Attributes:
        captures: Whether reads under nested transforms are captured (the frame belongs to a trace).
        base_trace: The JAX trace that the frame belongs to.
        num_local: How many local replicas' components it tells apart.
    """

    captures: bool
    base_trace: Any = None
    num_local: int = 1

    def outermost(self) -> Frame:
        """The frame of the function or run that this one is a part of: itself, but for a branch or a loop body."""
        return self

    def on_read(self, variable: Any, value: Any) -> Any:
        """As a `ReadListener`: hands the value on, and notes that a jitted helper that is being traced captures it."""
        trace = recording_parent(current_trace())
        if trace is not self.base_trace and trace is not getattr(ambient().frame, "base_trace", None):
            jit_key.note_read()
        return value

    def on_write(self, variable: Any) -> None:
        """As a `ReadListener`: a jitted helper that has captured the old value must be traced again."""
        jit_key.renew()

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


class FunctionFrame(Frame):
    """One trace of a compiled function.

    Attributes:
        captured: The variables that were read, each with its capture tracer, in order of first read.
        staged: The variables that were assigned, each with its newest value.
        new: Variables created during the trace.
        as_written: Whether a run in it asks to be compiled as written.
        layout: Of a run in it, None before.
    """

    captures = True

    def __init__(self) -> None:
        self.captured: dict[int, Held] = {}
        self.staged: dict[int, Held] = {}
        self.new = Created()
        self.as_written = False
        self.layout: Any = None

    def whole(self, variable: Any) -> Any:
        if id(variable) in self.staged:
            return self.staged[id(variable)][1]
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


@dataclasses.dataclass
class Staged(Bookkeeping):
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


class ReplicaFrame(Frame):
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
        self.staged: dict[int, Staged] = {}
        self.new = Created()
        self._base = base
        self._whole_base = whole_base
        self._join = join
        self._split = split

    def local(self, variable: Any, replica: int) -> Any:
        entry = self.staged.get(id(variable))
        if entry is not None and entry.locals[replica] is not None:
            return entry.locals[replica]
        return self._base(variable, replica)

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
        return entry.whole

    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        entry = self._entry(variable)
        entry.locals = [self._split(value, replica) for replica in range(self.num_local)]
        entry.where = [where] * self.num_local
        entry.whole = value

    def created(self, variable: Any) -> None:
        self.new.append(variable)

    def _entry(self, variable: Any) -> Staged:
        entry = self.staged.get(id(variable))
        if entry is None:
            entry = self.staged[id(variable)] = Staged(variable, [None] * self.num_local, [""] * self.num_local)
        return entry
