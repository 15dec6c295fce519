"""Uncommitted values of variables that a run or function has assigned, and how gradients flow through their reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from mirrored.runtime.ambient import ReadableVariable

K = TypeVar("K")


class VariableLike(ReadableVariable, Protocol):
    """The interface of a variable that `VariableStore` needs."""

    name: str
    device_assignment: Any
    per_replica: bool

    @property
    def component_shape(self) -> tuple[int, ...]:
        """The shape of one replica's copy of the variable."""
        ...

    @property
    def dtype(self) -> Any:
        """The dtype of one replica's copy of the variable."""
        ...

    def stored(self) -> Any:
        """Returns the stored value for all replicas: one mirrored array, or stacked rows, one per replica."""
        ...

    def stored_component(self, replica: int) -> Any:
        """Returns one replica's stored copy of the variable, on that replica's device."""
        ...

    def before_write(self) -> None:
        """Called before an assignment; lets a Keras training loop first store a newer value that the loop holds."""
        ...

    def store(self, value: jax.Array, *, shared: bool = False) -> None:
        """Stores a new value for all replicas; `shared` says whether other code also holds the new value's buffers."""
        ...

    def stored_shape(self) -> tuple[int, ...]:
        """Returns the shape of the stored value, including the replica axis if there is one."""
        ...

    def mark_shared(self) -> None:
        """Marks the value's device buffers as used by other code, so that a step copies instead of donating them."""
        ...

    def lose(self, why: str) -> None:
        """Marks the variable's value as lost, because the step that was to compute it has failed."""
        ...


class Bookkeeping:
    """Marker base class of `mirrored`'s internal objects that refer to variables.

    Such references do not count when `captured_objects.refuse_forgotten` checks that the user's code keeps a variable.
    """


class Created(list[Any], Bookkeeping):
    """The list of the variables that the user's function has created during a trace."""

    @property
    def repeats_trace(self) -> bool:
        """Whether this trace is discarded and the function is traced again, because the function created variables.

        Python code such as `if self.w is None` has taken the branch that creates state. Every later call takes the
        other branch, which the second trace records. Internal variables (the slots of an optimizer) need no second
        trace by themselves: their creation leaves the rest of the program as it is.
        """
        return any(not variable.internal for variable in self)


class CreatedByLine(dict[tuple[str, int], Any], Bookkeeping):
    """Maps a source line and its execution count to the variable that the replicas of a `run` create at the line.

    As bookkeeping it does not make a variable of a trace that the user's function drops count as kept.
    """


class Held(NamedTuple):
    """A variable and its value in a trace: the tracer of the variable's old value, or the newest assigned value."""

    variable: VariableLike
    value: Any


def take_values(staged: dict[K, Held]) -> list[Any]:
    """Returns the values that a traced function has assigned, as arrays, and replaces them in `staged` by None.

    It is called at the end of the trace, after which they are invalid. `jax.checking_leaks` reports tracers to which
    something refers then.
    """
    values = [jnp.asarray(held.value) for held in staged.values()]
    staged.update({key: Held(held.variable, None) for key, held in staged.items()})
    return values


@dataclasses.dataclass
class StagedAssignment(Bookkeeping):
    """The uncommitted values that the local replicas of a `run` have assigned to one variable.

    Attributes:
        variable: The variable.
        locals: The newest component of each local replica; None for a replica that has not assigned it.
        where: The line of the last assignment of each component.
        whole: The value for all replicas, which a merge has assigned, or which was joined from the components at a read
            and kept. None if a replica has assigned the variable since.
        is_update: Whether replicas have assigned the update of an optimizer. It is computed from values that are equal
            on all replicas, so an eager run, too, stages it and updates a plain variable once.
    """

    variable: VariableLike
    locals: list[Any]
    where: list[str]
    whole: Any = None
    is_update: bool = False

    def without_values(self) -> StagedAssignment:
        """Returns a copy of this assignment that refers to no values, for use after the trace of the run."""
        return dataclasses.replace(self, locals=[None] * len(self.locals), whole=None)


@dataclasses.dataclass(frozen=True)
class Captured(Bookkeeping):
    """Identifies what a tracer stands for: a variable's value, or the variable's value on one replica."""

    variable: VariableLike
    local: int | None

    def __str__(self) -> str:
        return f"variable {self.variable.name!r}"


@jax.custom_jvp
def with_gradients_to_old(newest: jax.Array, before: jax.Array) -> Any:
    """Returns the value `newest`, whose gradients flow to the value `before` instead.

    The values are a variable's newly assigned and its old value. An assignment has no derivative: a gradient with
    respect to a value that is read after it flows to the variable, not to the inputs of the assigned value. A tape
    around a compiled function or run sees all of that as one operation with the variable as an operand, so the operand
    `before` carries the gradient.
    """
    return newest


@with_gradients_to_old.defjvp
def _with_gradients_to_old_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    # The function itself: a second derivative flows to the old value, too.
    return with_gradients_to_old(*primals), tangents[1]


def read_assigned(variable: VariableLike, newest: jax.Array, before: Callable[[VariableLike], Any]) -> Any:
    """Returns a variable's newly assigned value, whose gradients flow to the variable's old value.

    A value of a dtype without derivatives is returned unchanged.
    """
    return with_gradients_to_old(newest, before(variable)) if jnp.issubdtype(variable.dtype, jnp.inexact) else newest


def without_derivative(value: jax.Array) -> Any:
    """Applies `jax.lax.stop_gradient` to an array of a differentiable dtype; returns other arrays unchanged."""
    return jax.lax.stop_gradient(value) if jnp.issubdtype(value.dtype, jnp.inexact) else value
