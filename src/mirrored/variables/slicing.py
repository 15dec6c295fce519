"""Slices of variables that can be assigned: ``variable[1:].assign(value)``."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from mirrored._jax.arrays import as_array
from mirrored._jax.boxes import payload_of
from mirrored.errors import ArgumentError, NotSupportedError, VariableError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.variable_store import refuse_64_bits
from mirrored.values.index_checks import values_now
from mirrored.variables.rules import VariableAggregation, check_kind
from mirrored.variables.state_lock import assignment_lock

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable

_PLAIN: Final = (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA)

# An array has no place for a reference to its variable: tracers and boxes have no `__dict__`. So the slices of
# variables are kept by identity, as long as the array exists.
_slices: Final[dict[int, tuple[weakref.ref[Any], Slice]]] = {}


class Slice:
    """A part of a variable, selected by indexing such as ``variable[1:]``, that can be assigned.

    Args:
        variable: The variable; the slice does not keep it alive.
        index: The index, as in ``variable[index]``.
    """

    __slots__ = ("_variable", "index")

    def __init__(self, variable: Variable, index: Any) -> None:
        self._variable = weakref.ref(variable)
        self.index = index

    def assign(self, value: object) -> Any:
        """Replaces the elements of this part of the variable, and returns the variable's new value.

        Raises:
            VariableError: The value has another kind of dtype, or cannot be broadcast to the shape of the slice.
            ArgumentError: An index whose value is known on the host is outside of the variable.
            NotSupportedError: The replicas' values would be aggregated: the sum or mean is over whole variables.
        """
        variable = self._variable()
        if variable is None:
            raise VariableError(
                "Variable[...].assign",
                found="the variable of the slice does not exist any more",
                rule="a slice refers to its variable and does not keep it alive",
                remedy="keep a reference to the variable",
            )
        called = f"{variable.name}[...].assign"
        _check_aggregation(variable, called)
        check_kind(value, variable.dtype, called, variable.name)
        refuse_64_bits(variable, called)
        _check_index(self.index, variable.component_shape, called)
        new = as_array(value, variable.dtype)
        with assignment_lock():
            place = variable.read_value().at[self.index]
            shape = place.get().shape
            try:
                return variable.assign(place.set(new))
            except ValueError as error:
                if new.shape == shape or isinstance(error, VariableError):
                    raise
                raise VariableError(
                    called,
                    found=f"Cannot broadcast input shape {list(new.shape)} into final shape {list(shape)}",
                    rule="a value that is assigned to a slice must have the shape of the slice, or broadcast to it",
                    remedy="reshape it to the shape of the slice",
                ) from None


def note_slice(part: jax.Array, variable: Variable, index: Any) -> jax.Array:
    """Records that an array was read from a part of a variable by indexing; returns the array."""
    array = payload_of(part)  # a box cannot be referenced weakly
    key = id(array)
    _slices[key] = (weakref.ref(array, lambda _: _slices.pop(key, None)), Slice(variable, index))
    return part


def slice_of(part: jax.Array) -> Slice | None:
    """Returns the part of a variable from which an array was read by indexing; None for other arrays."""
    array = payload_of(part)
    found = _slices.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def _check_index(index: Any, shape: tuple[int, ...], called: str) -> None:
    """Raises an error for an integer index that selects no element, because JAX drops an update at such an index."""
    parts = index if isinstance(index, tuple) else (index,)
    omitted = max(len(shape) - sum(map(_num_axes, parts)), 0)  # the axes that `...` stands for
    axis = 0
    for part in parts:
        if part is Ellipsis:
            axis += omitted
            continue
        if _num_axes(part) == 1 and not isinstance(part, slice) and axis < len(shape):
            _check_integers(part, axis, shape[axis], called)
        axis += _num_axes(part)


def _num_axes(part: Any) -> int:
    """Returns the number of array axes to which one element of an index applies, such as 2 for a boolean matrix."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, slice):
        return 1
    array = _as_array(part)
    return array.ndim if array.dtype == np.bool_ else 1


def _as_array(part: Any) -> Any:
    """Converts an index to an array; Python and NumPy numbers become a NumPy array, even during tracing."""
    is_on_host = all(isinstance(one, (int, np.generic, np.ndarray)) for one in jax.tree.leaves(part))
    return np.asarray(part) if is_on_host else as_array(part)


def _check_integers(part: Any, axis: int, size: int, called: str) -> None:
    array = _as_array(part)
    values = array if isinstance(array, np.ndarray) else values_now(array)
    if values is None or values.dtype.kind not in "iu":
        return
    wrong = values[(values < -size) | (values >= size)]
    if wrong.size:
        raise ArgumentError(
            called,
            found=f"slice index {wrong.flat[0]} of dimension {axis} is out of bounds: the dimension has size {size}",
            rule=f"an index of this dimension is from {-size} to {size - 1}",
            remedy="correct the index; a slice such as [5:] may select nothing",
        )


def _check_aggregation(variable: Variable, called: str) -> None:
    in_replica = ambient().replica is not None
    if variable.per_replica is in_replica if variable.per_replica else not in_replica:
        return
    if not variable.per_replica and (variable.aggregation in _PLAIN or variable.device_assignment is None):
        return
    where = "in replica context" if in_replica else "in cross-replica context"
    raise NotSupportedError(
        called,
        found=f"a slice of {variable.name!r} with aggregation {variable.aggregation} was assigned {where}",
        rule="a slice can be assigned only if the assignment does not aggregate values of several replicas",
        remedy="compute the whole new value and assign it to the variable",
    )
