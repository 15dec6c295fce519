"""Implements hashable references to variables, and `copy.deepcopy` and `pickle` of variables."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mirrored._jax.array_types import keeping_width
from mirrored._jax.arrays import copied
from mirrored._jax.traces import current_trace, eager, is_eval, trace_below_tapes
from mirrored.errors import ArgumentTypeError, ContextError
from mirrored.runtime.ambient import ambient, within

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable


# `Reference`: a hashable reference to a variable, compared by identity.


class Reference:
    """A hashable reference to a variable, compared by the variable's identity, for use as a dictionary key.

    `Variable.ref()` creates it. Variables themselves compare elementwise and are not hashable.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable(1.0)
        >>> {v.ref(): "weight"}[v.ref()]
        'weight'
        >>> v.ref().deref() is v
        True

    TensorFlow: the result of `tf.Variable.ref`.
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def deref(self) -> Any:
        """Returns the variable to which this reference points."""
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other._variable is self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def __lt__(self, other: Reference) -> bool:
        """Orders references by the creation of their variables, so that pytrees can have references as dict keys."""
        return self._variable.serial < other._variable.serial if isinstance(other, Reference) else NotImplemented

    def __repr__(self) -> str:
        return f"<Reference to {self._variable.name!r}>"


# Support for `copy.deepcopy` and `pickle` of variables.

_PLACES: Final = ("strategy", "device_assignment")
# Attributes that the copy does not take over: the first group describes the stored value, the second the original.
_OF_THE_VALUE: Final = ("_array", "_lost", "_components", "_shared", "serial")
_OF_THE_ORIGINAL: Final = ("_withheld", "_keras_view", "backs", "number_of_name")


def deep_copy(variable: Variable, memo: dict[int, Any]) -> Any:
    """Implements `copy.deepcopy`: returns a new variable of the same strategy with an equal value.

    Raises:
        ContextError: Inside a run or a compiled function, where the value is not in storage.
        LostStateError: The value is lost: a step that owned its buffer failed.
    """
    value = _stored(variable, "copy.deepcopy")
    with eager():
        own = copied(value)
    made = object.__new__(type(variable))
    memo[id(variable)] = made
    kept = {name: one for name, one in vars(variable).items() if name not in (*_OF_THE_VALUE, *_OF_THE_ORIGINAL)}
    vars(made).update({name: one if name in _PLACES else copy.deepcopy(one, memo) for name, one in kept.items()})
    made.hold(own)
    return made


def reduced(variable: Variable) -> Any:
    """Implements `pickle` of a variable (its `__reduce_ex__`); a variable of a strategy cannot be pickled.

    Raises:
        ArgumentTypeError: The variable belongs to a strategy, or holds typed random keys.
        ContextError: Inside a run or a compiled function, where the value is not in storage.
    """
    if variable.device_assignment is not None:
        raise ArgumentTypeError(
            "pickle of a Variable",
            found=f"variable {variable.name!r} belongs to {variable.strategy!r}",
            rule="devices have no meaning in another process, so variables of a strategy cannot be pickled",
            remedy="save the state with mirrored.checkpoint.Checkpoint, or send values: variable.numpy(), "
            "mirrored.unmirror(model)",
        )
    value = _stored(variable, "pickle")
    if not isinstance(variable.dtype, np.dtype):
        raise ArgumentTypeError(
            "pickle of a Variable",
            found=f"variable {variable.name!r} has the dtype {variable.dtype}",
            rule="pickle stores the value as a NumPy array, and NumPy does not have this dtype",
            remedy="send jax.random.key_data(variable.read_value()), or save it with mirrored.checkpoint.Checkpoint",
        )
    options = {
        "trainable": variable.trainable,
        "name": variable.name,
        "synchronization": variable.synchronization,
        "aggregation": variable.aggregation,
        "shape": variable.shape,
        "constraint": variable.constraint,
    }
    return _plain, (type(variable), np.asarray(value), options)


def _plain(kind: type[Variable], value: np.ndarray[Any, Any], options: dict[str, Any]) -> Any:
    with within(strategies=()), keeping_width(str(value.dtype)):
        return kind(value, **options)


def _stored(variable: Any, called: str) -> Any:
    if ambient().store is not None or not is_eval(trace_below_tapes(current_trace())):
        raise ContextError(
            f"{called} of a Variable",
            found=f"variable {variable.name!r} was copied inside a run, a compiled function or a JAX transform",
            rule="a copy takes the stored value, and assignments in such code are not stored yet",
            remedy="copy it outside; inside, read_value() returns the current value",
        )
    return variable.stored()
