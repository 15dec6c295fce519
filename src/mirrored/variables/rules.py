"""The rules of variables: synchronization, aggregation, accepted values, and contexts of reads and assignments."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array, is_key_dtype
from mirrored._jax.traces import current_trace, is_eval, is_tracer, recording_parent
from mirrored.collectives.host_allgather import check_equal
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op, check_reduction
from mirrored.errors import ArgumentError, ContextError, TransformError, VariableError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.variable_store import VariableStore

# Synchronization and aggregation rules of variables.
#
# | synchronization | context | read | assign |
# |---|---|---|---|
# | ON_WRITE (AUTO) | cross-replica | the value | the value, for all replicas |
# | ON_WRITE (AUTO) | replica | the value | NONE: unchanged, if checked to be replicated; else aggregated |
# | ON_READ | cross-replica | aggregated over replicas | SUM: divided among replicas; else the value for each one |
# | ON_READ | replica | this replica's component | this replica's component |


class VariableAggregation(enum.Enum):
    """How the values of several replicas are reduced to one.

    Every argument that takes a `VariableAggregation` also takes a `ReduceOp` subclass or any callable from
    ``[replicas, ...]`` to ``[...]``.

    TensorFlow: `tf.VariableAggregation`.
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3

    def __repr__(self) -> str:
        return f"VariableAggregation.{self.name}"

    __str__ = __repr__


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are synchronized: on every write, or on cross-replica reads.

    TensorFlow: `tf.VariableSynchronization`. AUTO means ON_WRITE, as in TensorFlow.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3

    def __repr__(self) -> str:
        return f"VariableSynchronization.{self.name}"

    __str__ = __repr__


def as_synchronization(value: Any, name: str | None) -> VariableSynchronization:
    """Converts the user's argument to ON_WRITE or ON_READ.

    Raises:
        ArgumentError: The argument is NONE, or is not a `VariableSynchronization`.
    """
    if value is None or value is VariableSynchronization.AUTO:
        return VariableSynchronization.ON_WRITE
    if isinstance(value, str):
        value = VariableSynchronization.__members__.get(value.upper(), value)
        value = VariableSynchronization.ON_WRITE if value is VariableSynchronization.AUTO else value
    if value in (VariableSynchronization.ON_WRITE, VariableSynchronization.ON_READ):
        return value  # type: ignore[no-any-return]
    raise ArgumentError(
        "Variable",
        found=f"synchronization={value!r} for variable {name!r}",
        rule="a variable of a strategy is synchronized ON_WRITE (AUTO) or ON_READ",
        remedy="omit synchronization, or pass VariableSynchronization.ON_READ",
    )


def as_aggregation(value: Any, name: str | None) -> Any:
    """Converts the user's argument to a `VariableAggregation` or a custom reduction.

    Raises:
        ArgumentError: The argument is neither.
    """
    if value is None:
        return VariableAggregation.NONE
    if isinstance(value, VariableAggregation):
        return value
    key = value.upper() if isinstance(value, str) else getattr(value, "name", None)
    if isinstance(key, str) and key in VariableAggregation.__members__:
        return VariableAggregation[key]
    if not isinstance(value, str) and callable(value):
        return as_reduce_op(value) if isinstance(value, type) else value
    raise ArgumentError(
        "Variable",
        found=f"aggregation={value!r} for variable {name!r}",
        rule="an aggregation is NONE, SUM, MEAN, ONLY_FIRST_REPLICA, a ReduceOp, or a callable over stacked values",
        remedy="pass a VariableAggregation, for example VariableAggregation.MEAN",
    )


def reduction_of(aggregation: Any) -> Any:
    """Returns the reduction of an aggregation. NONE and ONLY_FIRST_REPLICA have none."""
    if aggregation is VariableAggregation.SUM:
        return ReduceOp.SUM
    if aggregation is VariableAggregation.MEAN:
        return ReduceOp.MEAN
    return aggregation


def check_aggregation(
    aggregation: Any, shape: tuple[int, ...], dtype: Any, name: str | None, num_replicas: int
) -> None:
    """Refuses an aggregation whose result does not have the variable's shape and dtype.

    Raises:
        ArgumentError: The aggregation is MEAN of integers, or a custom reduction that changes the shape or dtype.
    """
    if isinstance(aggregation, VariableAggregation):
        if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
            raise ArgumentError(
                "Variable",
                found=f"aggregation=MEAN for variable {name!r} of dtype {dtype}",
                rule="the mean of integers is not an integer",
                remedy="use a floating dtype, or aggregation SUM or ONLY_FIRST_REPLICA",
            )
        return
    if aggregation is not ReduceOp.SUM and aggregation is not ReduceOp.MEAN:
        check_reduction(aggregation, jax.ShapeDtypeStruct(shape, dtype), num_replicas)


# Checks the dtype of assigned values: a cast to the variable's dtype must keep the kind of number.

_KINDS: Final[tuple[Any, ...]] = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def check_kind(value: Any, wanted: Any, called: str, name: str | None) -> None:
    """Refuses a value that would lose its fraction, its imaginary part or its magnitude in a cast to dtype `wanted`.

    Python numbers, also in lists, follow the rule of arrays of their kind.

    Raises:
        VariableError: The value is of a kind that cannot be kept (2.7 for an integer variable).
    """
    given = _dtype_of(value)
    if given is None or _casts(given, wanted):
        return
    what = f"a value of dtype {given}" if hasattr(value, "dtype") else f"{value!r}"
    raise VariableError(
        called,
        found=f"{what} for variable {name!r} of dtype {wanted}",
        rule="a value is cast only where its kind is kept (float to float, int to int or float)",
        remedy="assign random keys of the same implementation: jax.random.key(seed)"
        if is_key_dtype(wanted)
        else f"cast it on purpose: jnp.asarray(value).astype({str(jnp.dtype(wanted))!r})",
    )


def _dtype_of(value: Any) -> Any:
    """Returns the dtype of an array, of a Python number, or the widest one in a list; None for any other object."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return dtype
    if isinstance(value, bool | int | float | complex):
        return np.dtype(type(value))
    if isinstance(value, list | tuple):
        inside = [dtype for dtype in map(_dtype_of, value) if _rank(dtype) is not None]
        return max(inside, key=lambda dtype: _rank(dtype) or 0, default=None)
    return None


def _rank(dtype: Any) -> int | None:
    if dtype is None:
        return None
    return next((i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), None)


def _casts(given: Any, wanted: Any) -> bool:
    ranks = _rank(given), _rank(wanted)
    if ranks[0] is None or ranks[1] is None:
        return bool(given == wanted)
    return ranks[0] <= ranks[1]


# `Assignment`: one call of `assign`, `assign_add` or `assign_sub`, and the check that the value fits the variable.

_COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "assign": lambda old, new: new,
    "assign_add": lambda old, new: old + new,
    "assign_sub": lambda old, new: old - new,
}


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A call of `assign`, `assign_add` or `assign_sub`.

    Attributes:
        variable: The variable that is assigned.
        method: ``"assign"``, ``"assign_add"`` or ``"assign_sub"``.
        where: The line of user code that makes the call.
        called: The call as the user wrote it, for messages.
        read_value: Whether the caller receives the new value.
    """

    variable: Any
    method: str
    where: str
    called: str
    read_value: bool = True

    @property
    def replaces(self) -> bool:
        """Whether the new value does not depend on the old one."""
        return self.method == "assign"

    def old(self) -> Any:
        """Returns the stored value to combine with; None for `assign`.

        `assign` does not read the old value, so it also works on a variable whose value is lost.
        """
        return None if self.replaces else self.variable.stored()

    def combined(self, old: Any, value: Any) -> Any:
        """Returns the new value (or component), after checking that `value` fits the variable.

        Raises:
            VariableError: The shape of `value` differs from the variable's, or its dtype would lose information.
        """
        variable = self.variable
        shape = np.shape(value)
        if shape != variable.shape:
            raise VariableError(
                self.called,
                found=f"a value of shape {shape} for variable {variable.name!r} of shape {variable.shape}",
                rule="an assigned value has the variable's shape",
                remedy="reshape or broadcast it: jnp.broadcast_to(value, variable.shape)",
            )
        check_kind(value, variable.dtype, self.called, variable.name)
        new = _COMBINE[self.method](old, as_array(value, variable.dtype))
        return new if jnp.issubdtype(variable.dtype, jax.dtypes.extended) else new.astype(variable.dtype)


def aggregation_name(aggregation: Any) -> str:
    """Returns the name of an aggregation, for messages."""
    return str(getattr(aggregation, "name", None) or getattr(aggregation, "__name__", repr(aggregation)))


# Resolves the variable store of the current context, and refuses reads and writes that the context does not allow.


def store_of(variable: Any, here: Ambient) -> VariableStore | None:
    """Returns the store that `variable` is read from and written to in this context; None means its storage.

    In an eager run the replicas share a plain variable and run one after another. It has no copies to stage, so they
    use its storage directly. The slots of an optimizer that was made outside of the scope are staged nevertheless: one
    step must update them once.
    """
    store = here.store
    if store is not None and not store.captures and variable.device_assignment is None and not variable.internal:
        return None
    return store


def eager_replica(variable: Any) -> int | None:
    """Returns the local replica index if `variable` is sync-on-read and this is an eager run, else None.

    There an assignment returns the component object, as in TensorFlow, and not an array.
    """
    here = ambient()
    eager_run = here.replica is not None and here.store is not None and not here.store.captures
    return here.replica.local_index if eager_run and variable.per_replica else None


def check_strategy(variable: Any, here: Ambient, called: str) -> None:
    """Refuses a variable that belongs to a strategy other than the current one."""
    if variable.device_assignment is None or not here.strategies or variable.strategy is here.strategies[-1]:
        return
    raise ContextError(
        called,
        found=f"variable {variable.name!r} belongs to {variable.strategy!r}, but {here.strategies[-1]!r} is current",
        rule="a run or scope uses only plain variables and variables of its own strategy",
        remedy="create the variable in the scope of the strategy that uses it",
    )


def check_readable(variable: Any, store: VariableStore | None, here: Ambient) -> None:
    """Refuses a read under a JAX transform that would turn the value into a constant of the traced program."""
    if here.listeners or (store is not None and store.captures) or is_eval(recording_parent(current_trace())):
        return
    raise TransformError(
        f"reading {variable.name}",
        found=f"the value of variable {variable.name!r} was read under a JAX transform ({_transform()})",
        rule="a transform outside mirrored.function and GradientTape would turn the value into a constant",
        remedy="use mirrored.function instead of jax.jit and GradientTape instead of jax.grad, "
        "or pass variable.read_value() as an argument",
    )


def check_writable(variable: Any, store: VariableStore | None, called: str) -> None:
    """Refuses an assignment under a transform, where it would happen during tracing and not when the program runs."""
    trace = recording_parent(current_trace())
    if trace is store.base_trace if store is not None and store.captures else is_eval(trace):
        return
    raise TransformError(
        called,
        found=f"variable {variable.name!r} was assigned under a JAX transform ({_transform()})",
        rule="an assignment inside jit, grad, scan, cond or vmap would happen once, during tracing, "
        "and not when the program runs",
        remedy="return the new value from the transformed function and assign it outside",
    )


def _transform() -> str:
    return type(recording_parent(current_trace())).__name__.removesuffix("Trace")


# Checks that all workers assign the same value to a variable: unequal values would make its copies diverge.


def check_same_everywhere(assignment: Assignment, value: Any) -> None:
    """Refuses a host value or process-local array that differs between workers.

    An array over the devices of all workers passes without a comparison: one program on all workers computed it.

    Raises:
        DisagreementError: The values differ; the message names the workers.
    """
    device_assignment = assignment.variable.device_assignment
    if device_assignment is None or not device_assignment.spans_processes or is_tracer(value):
        return
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return
    check_equal(
        assignment.called,
        {f"the value for variable {assignment.variable.name!r}": value},
        rule="a variable has one value on all workers",
        remedy="compute it from the same data on all workers, or from the result of strategy.reduce or strategy.gather",
    )
