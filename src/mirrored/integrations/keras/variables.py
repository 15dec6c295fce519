"""Keras variables that are backed by a `mirrored.Variable`.

The synchronization of the backing variable depends on the role of the Keras variable:

| created by | Keras variable | backing variable |
|---|---|---|
| a layer | trainable | mirrored |
| a layer | floating, not trainable (BatchNormalization's statistics) | one component per replica, MEAN on read |
| a seed generator | its state | one component per replica, each with its own seed |
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
# 2**32 / golden ratio, rounded to an odd number: replicas' seeds are far apart, and replica 0 keeps the user's seed.
_SEED_STRIDE = 0x9E3779B9


class StrategyVariable(KerasVariable):  # type: ignore[misc]
    """A Keras variable that is backed by a `mirrored.Variable`. Keras creates it; programs do not instantiate it.

    Keras stores a variable's array in `_value`. Here `_value` is a property that reads and assigns the backing
    variable. So compiled functions capture reads, tapes record them, and assignments follow the variable's rules.
    """

    @property
    def mirrored(self) -> Variable | None:
        """The backing variable; None before Keras initializes it."""
        return self.__dict__.get("_mirrored")

    @property
    def _value(self) -> Any:
        return None if self.mirrored is None else self.read_value()

    @_value.setter
    def _value(self, value: Any) -> None:
        if value is None:
            return  # Keras releases a value that `fit` carries itself, and assigns the new value at the end.
        if self.mirrored is None:
            self.__dict__["_mirrored"] = _made_for(self, value)
        else:
            announce_write(self.announced)
            _assign(self, self.mirrored, value)

    def read_value(self) -> Any:
        """Returns the value in the current context, and reports the read to tapes."""
        assert self.mirrored is not None
        store = ambient().store
        if _in_stateless_scope() and (store is None or isinstance(store, ScopeStore)):
            # Keras infers shapes, or calls a model with values for other variables: this one is read eagerly.
            with eager(), within(store=None):
                return self.mirrored.checked_value()
        return announce_read(self.announced, self.mirrored.checked_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # Keras' own method has no `copy` argument, so NumPy would warn on every conversion.
        return np.array(self.value, dtype, copy=copy)

    @property
    def announced(self) -> Any:
        """The object that reads and writes are reported under to tapes."""
        return self

    @property
    def components(self) -> tuple[Any, ...]:
        """The components, one per replica."""
        return () if self.mirrored is None else tuple(getattr(self.mirrored, "values", (self.mirrored,)))


class View(StrategyVariable):
    """A Keras view of a `mirrored.Variable`, for layers and optimizers that receive one."""

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
        """The backing variable: user code reads it, and can request its gradient by either object."""
        return self.mirrored

    def _initialize_with_initializer(self, initializer: Any) -> None:
        """Does nothing: the backing variable already has a value."""

    def _deferred_initialize(self) -> None:
        """Drops the initializer: the backing variable already has a value."""
        self._initializer = None


def as_keras(variable: Any) -> Any:
    """Returns a Keras variable: `variable` itself, or the unique view of a `mirrored.Variable`."""
    if not isinstance(variable, Variable):
        return variable
    view = vars(variable).get("_keras_view")
    if view is None:
        view = View(variable)
        vars(variable)["_keras_view"] = view
    return view


def adopt(variable: Any) -> None:
    """Converts a Keras variable that is under construction to a `StrategyVariable`."""
    if type(variable) is KerasVariable:
        variable.__dict__.pop("_value", None)
        variable.__class__ = StrategyVariable


def _made_for(variable: Any, value: Any) -> Variable:
    synchronization, aggregation = _rules_of(variable)
    # Without a replica: a layer is built once, also inside run, so the first replica creates the variable for all.
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
    # Optimizers ask for ONLY_FIRST_REPLICA. With NONE, the replication check proves instead that the values are equal,
    # as they are after the all-reduce.
    return VariableSynchronization.ON_WRITE, given if given.name != "ONLY_FIRST_REPLICA" else VariableAggregation.NONE


def _maker() -> Any:
    """Returns the layer, optimizer, metric or seed generator in whose name scope a variable is created."""
    stack = keras.src.backend.common.global_state.get_global_attribute("name_scope_stack") or [None]
    return getattr(stack[-1], "caller", None)


def _is_seed(variable: Any) -> bool:
    return bool(variable.name == _SEED_NAME)


def _seeds_of(made: Variable, state: Any) -> PerReplica:
    """Returns one seed state per replica, with equal counters and different seeds."""
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
