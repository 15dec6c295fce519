"""Slices of variables that can be assigned: ``variable[1:].assign(value)``."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from mirrored._jax.arrays import as_array
from mirrored._jax.boxes import payload_of
from mirrored.errors import NotSupportedError, VariableError
from mirrored.runtime.ambient import ambient
from mirrored.variables.rules import VariableAggregation, check_kind
from mirrored.variables.state_lock import turn

if TYPE_CHECKING:
    import jax

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
        new = as_array(value, variable.dtype)
        with turn():
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
    """Records which part of which variable an array was read from; returns the array."""
    array = payload_of(part)  # a box cannot be referenced weakly
    key = id(array)
    _slices[key] = (weakref.ref(array, lambda _: _slices.pop(key, None)), Slice(variable, index))
    return part


def slice_of(part: jax.Array) -> Slice | None:
    """Returns the part of a variable from which an array was read by indexing; None for other arrays."""
    array = payload_of(part)
    found = _slices.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


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
