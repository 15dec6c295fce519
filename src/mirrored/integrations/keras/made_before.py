"""Converts Keras variables that were created before Keras was patched, as in a model made before the first scope.

The constructor of Keras variables was not patched yet, so such a variable stores its array itself: replicas would
assign it unnoticed, and a compiled function would leave a tracer in it. It becomes a `StrategyVariable` of no strategy,
as if it had been created after the first scope, when code that `mirrored` observes first reads or assigns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from mirrored._jax.traces import Tracer, eager
from mirrored.integrations.keras.private import KerasValue, in_stateless_scope, value_stored_by
from mirrored.integrations.keras.variables import KerasVariable, StrategyVariable, adopt
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient, within

_MADE_BEFORE: Final = "_mirrored_made_before"  # an attribute of adopted variables


def connect_made_before() -> None:
    """Patches `Variable._value` to turn Keras variables created before `connect` into `StrategyVariable`s.

    A variable is converted when it is first read or assigned in a run, a compiled function or under a gradient tape.
    """
    replace("keras", KerasVariable, "_value", KerasValue(adopt_if_observed))


def adopt_if_observed(variable: KerasVariable) -> bool:
    """Turns a plain Keras variable into a `StrategyVariable` if a run, compiled function or gradient tape is active.

    Returns whether it is a `StrategyVariable` now. Code without `mirrored` keeps Keras' own variables.
    """
    if is_observed():
        adopt_made_before([variable])
    return isinstance(variable, StrategyVariable)


def is_observed() -> bool:
    """Returns whether a run, compiled function or gradient tape is active in the current context."""
    here = ambient()
    return (here.replica is not None or here.store is not None or bool(here.listeners)) and not in_stateless_scope()


def adopt_made_before(variables: Iterable[Any], *, of_optimizer: bool = False) -> None:
    """Turns plain Keras variables, in place, into `StrategyVariable`s that belong to no strategy.

    Args:
        variables: Keras variables; those that are `StrategyVariable`s already stay.
        of_optimizer: Whether they are the state of an optimizer, which a step updates once for all replicas.
    """
    for variable in variables:
        if type(variable) is KerasVariable:
            _adopt_with_value(variable)
        if of_optimizer and _MADE_BEFORE in vars(variable) and variable.mirrored is not None:
            variable.mirrored.internal = True


def _adopt_with_value(variable: KerasVariable) -> None:
    value = value_stored_by(variable)
    if isinstance(value, Tracer):
        return  # a transform of the program's own has assigned it, and restores it
    adopt(variable)
    vars(variable)[_MADE_BEFORE] = True
    if value is None or not isinstance(variable, StrategyVariable):
        return
    with (
        eager(),
        within(strategies=(), replica=None, store=None, listeners=(), runner=None, interceptor=None, creators=()),
    ):
        variable.back(np.asarray(value))
