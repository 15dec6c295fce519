"""Keras variables whose value is a variable of ours.

A variable that Keras makes for a layer, an optimizer or a metric gets the synchronization that its role asks for:

| made by | variable | here |
|---|---|---|
| a layer | trainable | mirrored |
| a layer | floating, not trainable (BatchNormalization's statistics) | one component per replica, MEAN on read |
| a seed generator | its state | one component per replica, each with a seed of its own |
| a metric | ``synchronization="on_read"`` | one component per replica, SUM on read |
| an optimizer | any | mirrored |
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from mirrored._jax.putting import as_array
from mirrored._jax.traces import eager
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.scope_store import ScopeStore
from mirrored.integrations.keras.storing import stored_at_once
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.listeners import announce_read, announce_write
from mirrored.values.distributed_values import PerReplica
from mirrored.variables import Variable, VariableAggregation, VariableSynchronization

keras = load()
KerasVariable: Any = keras.src.backend.Variable
_in_stateless_scope = keras.src.backend.common.stateless_scope.in_stateless_scope
_SEED_NAME = "seed_generator_state"
# An odd constant near 2**32 / golden ratio: replicas' seeds are far apart, and replica 0 keeps the user's seed.
_SEED_STRIDE = 0x9E3779B9


class StrategyVariable(KerasVariable):  # type: ignore[misc]
    """A Keras variable over a variable of ours. Keras makes it; it is never made by hand.

    Keras keeps a variable's array in `_value`; here that is a property over the variable of ours, so that reads are
    captured by compiled functions and recorded by tapes, and assignments follow the variable's rules.
    """

    @property
    def mirrored(self) -> Variable | None:
        """The variable of ours, None before it has a value."""
        return self.__dict__.get("_mirrored")

    @property
    def _value(self) -> Any:
        return None if self.mirrored is None else self.read_value()

    @_value.setter
    def _value(self, value: Any) -> None:
        if value is None:
            return  # Keras lets go of a value that `fit` carries along itself, and assigns it when it is done.
        if self.mirrored is None:
            self.__dict__["_mirrored"] = _made_for(self, value)
        else:
            announce_write(self.announced)
            _assign(self, self.mirrored, value)

    def read_value(self) -> Any:
        """The value, as the context sees it; tapes know it as this variable's."""
        assert self.mirrored is not None
        store = ambient().store
        if _in_stateless_scope() and (store is None or isinstance(store, ScopeStore)):
            # Keras infers shapes, or calls a model as a function of other variables: it takes these as they are.
            with eager(), within(store=None):
                return self.mirrored.checked_value()
        return announce_read(self.announced, self.mirrored.checked_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # Keras' own has no `copy`, of which NumPy warns whenever a variable is converted.
        return np.array(self.value, dtype, copy=copy)

    @property
    def announced(self) -> Any:
        """Whose read and write tapes are told of."""
        return self

    @property
    def components(self) -> tuple[Any, ...]:
        """The copies, one per replica."""
        return () if self.mirrored is None else tuple(getattr(self.mirrored, "values", (self.mirrored,)))


class View(StrategyVariable):
    """A variable of ours, seen as Keras sees its own: for layers and optimizers that are given it."""

    def __init__(self, variable: Variable) -> None:
        self.__dict__["_mirrored"] = variable
        name = variable.name.replace("/", "_").replace(":", "_")
        super().__init__(
            lambda *_args, **_kwargs: None,
            shape=variable.shape,
            dtype=str(variable.dtype),
            trainable=variable.trainable,
            name=name,
        )

    @property
    def announced(self) -> Any:
        """The variable of ours: the user reads it, and asks for its gradient by either."""
        return self.mirrored

    def _initialize_with_initializer(self, initializer: Any) -> None:
        """It has its value."""

    def _deferred_initialize(self) -> None:
        """It had its value before Keras thought of giving it one."""
        self._initializer = None


def as_keras(variable: Any) -> Any:
    """`variable` as a Keras variable: itself, or the one view of a variable of ours."""
    if not isinstance(variable, Variable):
        return variable
    view = vars(variable).get("_keras_view")
    if view is None:
        view = View(variable)
        vars(variable)["_keras_view"] = view
    return view


def adopt(variable: Any) -> None:
    """Makes a Keras variable that is just being created one of a strategy."""
    if type(variable) is KerasVariable:
        variable.__dict__.pop("_value", None)
        variable.__class__ = StrategyVariable


def _made_for(variable: Any, value: Any) -> Variable:
    synchronization, aggregation = _rules_of(variable)
    # In a replica the first one makes it, for all: a layer that is built inside run is built once.
    with within(replica=None, runner=None):
        made = Variable(
            value,
            trainable=bool(variable._trainable),
            name=variable.path,
            dtype=variable._dtype,
            synchronization=synchronization,
            aggregation=aggregation,
        )
        made.internal = isinstance(_maker(), keras.optimizers.Optimizer)
        if _is_seed(variable) and made.num_replicas > 1:
            with within(store=None):
                made.share_of = _seed_of  # whoever assigns: a checkpoint, for instance, knows nothing of Keras
                made.assign(_seeds_of(made, np.asarray(made.stored_component(0))))
            made.await_value()
    return made


def _rules_of(variable: Any) -> tuple[VariableSynchronization, VariableAggregation]:
    given = VariableAggregation[variable.aggregation.upper()]
    if _is_seed(variable):
        return VariableSynchronization.ON_READ, VariableAggregation.ONLY_FIRST_REPLICA
    if variable.synchronization == "on_read":
        return VariableSynchronization.ON_READ, given
    maker = _maker()
    is_statistic = (
        isinstance(maker, keras.layers.Layer)
        and not variable._trainable
        and jnp.issubdtype(variable._dtype, jnp.floating)
    )
    if is_statistic:
        return VariableSynchronization.ON_READ, VariableAggregation.MEAN
    # Optimizers ask for the first replica's value: after the all-reduce all have the same, which is proved.
    return VariableSynchronization.ON_WRITE, given if given.name != "ONLY_FIRST_REPLICA" else VariableAggregation.NONE


def _maker() -> Any:
    """The layer, optimizer, metric or seed generator in whose name scope a variable is made."""
    stack = keras.src.backend.common.global_state.get_global_attribute("name_scope_stack") or [None]
    return getattr(stack[-1], "caller", None)


def _is_seed(variable: Any) -> bool:
    return bool(variable.name == _SEED_NAME)


def _seeds_of(made: Variable, state: Any) -> PerReplica:
    """A seed state per replica: the same count, seeds of their own."""
    first = as_array(state, made.dtype)
    # Outside of functions a process of several assigns the components of its own replicas.
    replicas = made.device_assignment.addressable_replicas if ambient().store is None else range(made.num_replicas)
    return PerReplica([_seed_of(first, replica) for replica in replicas], made.device_assignment)


def _seed_of(state: Any, replica: Any) -> Any:
    """The seed state of one replica, whose number may be traced."""
    first = as_array(state)
    return first.at[0].add(jnp.asarray(replica, first.dtype) * np.asarray(_SEED_STRIDE).astype(first.dtype))


def _assign(variable: Any, made: Variable, value: Any) -> None:
    if _is_seed(variable) and made.num_replicas > 1 and ambient().replica is None:
        value = _seeds_of(made, value)
    if not stored_at_once(made, value):
        made.assign(value, read_value=False)
