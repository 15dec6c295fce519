"""Rules of variables: when copies are synchronized, how values are aggregated, which dtypes are accepted."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import is_key_dtype
from mirrored._typing import DTypeLike
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op, check_reduction
from mirrored.errors import ArgumentError, VariableError

# Synchronization and aggregation rules of variables.
#
# | synchronization | context | read | assign |
# |---|---|---|---|
# | ON_WRITE (AUTO) | cross-replica | the value | the value, for all replicas |
# | ON_WRITE (AUTO) | replica | the value | NONE: unchanged, after the replication check; others: aggregated |
# | ON_READ | cross-replica | aggregated over replicas | SUM: divided among replicas; others: each gets the value |
# | ON_READ | replica | this replica's component | this replica's component |


class VariableAggregation(enum.Enum):
    """Enum: how the values of several replicas are reduced to one (NONE, SUM, MEAN or ONLY_FIRST_REPLICA).

    Every argument that takes a `VariableAggregation` also takes a `ReduceOp` subclass or any callable from
    ``[replicas, ...]`` to ``[...]``.

    Example:
        >>> import jax.numpy as jnp
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4)
        >>> with strategy.scope():
        ...     count = mr.Variable(0.0, aggregation=mr.VariableAggregation.SUM)
        >>> _ = strategy.run(lambda: count.assign_add(jnp.asarray(1.0)))
        >>> float(count)
        4.0

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
    """Enum: when the replicas' copies of a variable are synchronized, at assignments or at cross-replica reads.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4)
        >>> with strategy.scope():
        ...     seen = mr.Variable(0.0, synchronization=mr.VariableSynchronization.ON_READ, aggregation="SUM")
        >>> _ = strategy.run(lambda: seen.assign_add(1.0))  # no communication
        >>> float(seen)  # sums the components of the replicas
        4.0

    TensorFlow: `tf.VariableSynchronization`. AUTO means ON_WRITE, as in TensorFlow.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3

    def __repr__(self) -> str:
        return f"VariableSynchronization.{self.name}"

    __str__ = __repr__


Aggregation: TypeAlias = "VariableAggregation | ReduceOp | Callable[[jax.Array], jax.Array]"
"""How values of several replicas become one. A callable maps stacked components ``[replicas, ...]`` to one value."""


def as_synchronization(value: object, name: str | None) -> VariableSynchronization:
    """Converts the argument `synchronization` of a new variable to ON_WRITE or ON_READ.

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
    # The words of TensorFlow's messages, for which users search.
    searched = f"Invalid variable synchronization mode: {value} for variable: {name}"
    if value is VariableSynchronization.NONE:
        searched = f"`NONE` variable synchronization mode is not supported with strategies, for variable: {name}"
    raise ArgumentError(
        "Variable",
        found=searched,
        rule="`synchronization` must be ON_WRITE (AUTO) or ON_READ",
        remedy="omit synchronization, or pass VariableSynchronization.ON_READ",
    )


def as_aggregation(value: object, name: str | None) -> Any:
    """Converts the argument `aggregation` of a new variable to a `VariableAggregation` or a custom reduction.

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
        found=f"Invalid variable aggregation mode: {value} for variable: {name}",
        rule="`aggregation` must be NONE, SUM, MEAN, ONLY_FIRST_REPLICA, a ReduceOp, or a callable over stacked values",
        remedy="pass a VariableAggregation, for example VariableAggregation.MEAN",
    )


def aggregation_name(aggregation: Aggregation) -> str:
    """Returns the name of a variable's aggregation, for error messages."""
    return str(getattr(aggregation, "name", None) or getattr(aggregation, "__name__", repr(aggregation)))


def reduction_of(aggregation: Aggregation) -> Any:
    """Converts the aggregation SUM or MEAN to a `ReduceOp`; returns any other aggregation unchanged."""
    if aggregation is VariableAggregation.SUM:
        return ReduceOp.SUM
    if aggregation is VariableAggregation.MEAN:
        return ReduceOp.MEAN
    return aggregation


def check_aggregation(
    aggregation: Any, shape: tuple[int, ...], dtype: Any, name: str | None, num_replicas: int
) -> None:
    """Raises an error if a variable's aggregation would change the shape or dtype of its value.

    Raises:
        ArgumentError: The aggregation is MEAN of integers, SUM of booleans, or a custom reduction that changes the
            shape or dtype.
    """
    if isinstance(aggregation, VariableAggregation):
        if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
            raise ArgumentError(
                "Variable",
                found=f"aggregation=MEAN for variable {name!r} of dtype {dtype}",
                rule="the mean of integers is not an integer",
                remedy="use a floating dtype, or aggregation SUM or ONLY_FIRST_REPLICA",
            )
        if aggregation is VariableAggregation.SUM and jnp.issubdtype(dtype, jnp.bool_):
            raise ArgumentError(
                "Variable",
                found=f"aggregation=SUM for variable {name!r} of dtype bool",
                rule="booleans have no sum",
                remedy="use dtype int32 for a count, or aggregation ONLY_FIRST_REPLICA",
            )
        return
    if aggregation is not ReduceOp.SUM and aggregation is not ReduceOp.MEAN:
        check_reduction(aggregation, jax.ShapeDtypeStruct(shape, dtype), num_replicas)


# Checks assigned values: a cast to the variable's dtype must keep the kind of number, and the value of each integer
# that is known on the host.
#
# The values of device arrays are not checked, because that would need a transfer. They wrap around as in `astype`.

_KINDS: Final[tuple[Any, ...]] = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
_ON_HOST: Final = (np.ndarray, np.generic, int, list, tuple)


def check_kind(value: object, wanted: DTypeLike, called: str, name: str | None) -> None:
    """Raises an error if casting a value to dtype `wanted` would lose its fraction, imaginary part or magnitude.

    Python numbers, also in lists, follow the rule of arrays of their kind. Integers on the host (NumPy arrays, Python
    numbers) must be in the range of an integer dtype.

    Raises:
        VariableError: The value is of a kind that cannot be kept (2.7 for an integer variable), or an integer on the
            host is out of range (300 for ``uint8``).
    """
    given = _dtype_of(value)
    if given is None:
        return
    if _casts(given, wanted):
        if isinstance(value, _ON_HOST) and jnp.issubdtype(wanted, jnp.integer):
            _check_range(value, wanted, called, name)
        return
    what = f"a value of dtype {given}" if hasattr(value, "dtype") else f"{value!r}"
    raise VariableError(
        called,
        found=f"{what} for variable {name!r} of dtype {wanted}",
        rule="a value is cast only to its own kind of dtype, or to a later one in the order bool, int, float, complex",
        remedy="assign random keys of the same implementation: jax.random.key(seed)"
        if is_key_dtype(wanted)
        else f"cast it on purpose: jnp.asarray(value).astype({str(jnp.dtype(wanted))!r})",
    )


def _check_range(value: object, wanted: DTypeLike, called: str, name: str | None) -> None:
    low, high = _limits(wanted)
    outside = _outside(value, low, high)
    if outside is not None:
        raise VariableError(
            called,
            found=f"the value {outside} for variable {name!r} of dtype {wanted}",
            rule=f"an integer of {jnp.dtype(wanted)} is from {low} to {high}",
            remedy="create the variable with a wider dtype, or wrap the value around on purpose: "
            f"np.asarray(value).astype({str(jnp.dtype(wanted))!r})",
        )


def _outside(value: object, low: int, high: int) -> int | None:
    """Returns an integer in a host value that is less than `low` or greater than `high`, or None."""
    if isinstance(value, list | tuple):
        return next((found for one in value if (found := _outside(one, low, high)) is not None), None)
    if isinstance(value, int):
        return None if low <= value <= high else int(value)
    if not isinstance(value, np.ndarray | np.generic) or not value.size or not jnp.issubdtype(value.dtype, jnp.integer):
        return None
    lowest, highest = _limits(value.dtype)
    if low <= lowest and highest <= high:
        return None
    return next((int(bound) for bound in (value.min(), value.max()) if not low <= int(bound) <= high), None)


def _limits(dtype: DTypeLike) -> tuple[int, int]:
    limits = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def _dtype_of(value: object) -> Any:
    """Returns the dtype of an array or Python number, or the widest dtype in a list; None for other objects."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return dtype
    if isinstance(value, bool | int | float | complex):
        return np.dtype(type(value))
    if isinstance(value, list | tuple):
        inside = [dtype for dtype in map(_dtype_of, value) if _rank(dtype) is not None]
        return max(inside, key=lambda dtype: _rank(dtype) or 0, default=None)
    return None


def _rank(dtype: DTypeLike | None) -> int | None:
    if dtype is None:
        return None
    return next((i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), None)


def _casts(given: DTypeLike, wanted: DTypeLike) -> bool:
    ranks = _rank(given), _rank(wanted)
    if ranks[0] is None or ranks[1] is None:
        return bool(given == wanted)
    return ranks[0] <= ranks[1]


def no_strategy_error(called: str, name: str) -> VariableError:
    """Returns the error for assigning a per-replica value to a variable without a strategy."""
    return VariableError(
        called,
        found=f"a per-replica value was assigned to {name!r}, which was created outside of strategy.scope()",
        rule="such a variable has one value, and belongs to no strategy that could aggregate several",
        remedy="create the variable inside `with strategy.scope():`, or reduce the value first: "
        "strategy.reduce(op, value, axis=None)",
    )
