"""Finds which settings of a Keras optimizer are constants in its compiled update."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import Tracer
from mirrored.compilation.static_keys import Identity
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import variables_of_optimizer

if TYPE_CHECKING:
    from keras import Variable as KerasVariable
    from keras.optimizers import Optimizer
else:
    KerasVariable = load().Variable

keras = load()
_SCALARS: Final = (bool, int, float, complex, str, bytes, type(None), type, np.dtype, re.Pattern)
# Larger arrays are not compared by value in each update.
_MOST_ELEMENTS: Final = 1024
# What Keras itself derives from the variables.
_DERIVED: Final = frozenset(
    {"_tracker", "_trainable_variables_indices", "_var_to_optimizer_idx", "_exclude_from_weight_decay_cache"}
)
_UNKNOWN: Final = object()
# What a class can define without changing an update: its constructor, its configuration, and entries of Python's own.
_NOT_IN_UPDATES: Final = frozenset(
    {"__init__", "get_config", "from_config", "__module__", "__qualname__", "__doc__", "__firstlineno__"}
    | {"__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
)


def settings_of(optimizer: Optimizer) -> tuple[Any, ...] | None:
    """Returns a cache key for the constants of a compiled optimizer update: settings and variable constraints.

    Returns None if a part of it may change without notice.
    """
    constraints = [variable.constraint for variable in variables_of_optimizer(optimizer)]
    found = (_settings(optimizer), *(() if one is None else _of_keras(one) for one in constraints))
    return None if any(one is None for one in found) else found


def _is_of_keras(cls: type) -> bool:
    return cls.__module__.startswith("keras.")


def _of_keras(part: Any) -> tuple[Any, ...] | None:
    """Returns a cache key of Keras' own schedule or constraint; None for a user's class, which may read any state."""
    if not _is_of_keras(type(part)):
        return None
    return Identity(part), repr(part.get_config())


def _settings(optimizer: Optimizer) -> tuple[Any, ...] | None:
    """Returns a cache key of the settings of an optimizer and of the optimizers that it wraps.

    Returns None for a user-defined method or learning-rate schedule: it may read any state or draw numbers. A class of
    the user that has only a constructor and a configuration of its own updates as that of Keras does.
    """
    own = [cls for cls in type(optimizer).__mro__ if cls is not object and not _is_of_keras(cls)]
    if not all(_NOT_IN_UPDATES.issuperset(vars(cls)) for cls in own):
        return None
    found: list[Any] = []
    for name, value in vars(optimizer).items():
        if name in _DERIVED or name.startswith("_mirrored"):
            continue
        is_function = callable(value) and not hasattr(value, "dtype")
        if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            part: Any = _of_keras(value)
        elif isinstance(value, keras.optimizers.Optimizer) or name == "_inner_optimizers":
            inner = [_settings(one) for one in (value if isinstance(value, list) else [value])]
            part = None if any(one is None for one in inner) else tuple(inner)
        elif is_function and (name == "_learning_rate" or hasattr(type(optimizer), name)):  # it replaces a method
            part = None
        else:
            part = _frozen(value)
            if part is _UNKNOWN:
                continue
        if part is None:
            return None
        found.append((name, part))
    return tuple(found)


def _frozen(value: Any) -> Any:
    """Returns a hashable key of the content of plain data; `_UNKNOWN` for other objects."""
    if isinstance(value, _SCALARS):
        return type(value), value
    if isinstance(value, KerasVariable):
        return KerasVariable  # the update takes its value as an argument
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return _frozen_array(value)
    if isinstance(value, dict):
        parts: list[Any] = [part for item in value.items() for part in map(_frozen, item)]
    elif isinstance(value, (list, tuple)):
        parts = [_frozen(one) for one in value]
    elif isinstance(value, (set, frozenset)):
        parts = [frozenset(map(_frozen, value))]
        if _UNKNOWN in parts[0]:
            return _UNKNOWN
    else:
        return _UNKNOWN
    return _UNKNOWN if any(part is _UNKNOWN for part in parts) else (type(value), *parts)


def _frozen_array(value: Any) -> Any:
    is_plain = value.size <= _MOST_ELEMENTS and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
    if not is_plain or value.dtype.hasobject or isinstance(value, Tracer):
        return _UNKNOWN
    return str(value.dtype), value.shape, np.asarray(value).tobytes()
