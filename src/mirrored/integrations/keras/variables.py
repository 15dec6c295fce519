"""Keras variables whose values are stored in `mirrored` variables.

The synchronization of the backing variable depends on the role of the Keras variable:

| created by | Keras variable | backing variable |
|---|---|---|
| a layer | trainable | mirrored |
| a layer | floating, not trainable (BatchNormalization's statistics) | one component per replica, MEAN on read |
| a layer | with aggregation "sum" or "only_first_replica" | mirrored, with that aggregation |
| a seed generator | its state | one component per replica, each with its own seed |
| a metric | ``synchronization="on_read"`` | one component per replica, SUM on read |
| an optimizer | any | mirrored |
"""

from __future__ import annotations

import contextvars
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._blocks import setting
from mirrored._jax.array_types import keeping_width_of
from mirrored._jax.arrays import as_array, owned
from mirrored._jax.traces import Tracer, eager
from mirrored._typing import DTypeLike, Operand
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.loop_device import on_device_of_loop
from mirrored.integrations.keras.private import (
    autocast,
    drop_initializer,
    in_stateless_scope,
    maker,
    stored_dtype,
)
from mirrored.integrations.keras.scope_store import ScopeStore
from mirrored.integrations.keras.statistics import exact_statistic
from mirrored.runtime.ambient import ambient, announce_read, announce_write, within
from mirrored.runtime.eager_operation import in_eager_operation
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values.distributed_values import PerReplica
from mirrored.variables import Variable, VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from keras import Model
    from keras import Variable as _KerasVariable

# Stores the state that `fit` returns without a copy, if it already has the variable's sharding.
#
# `fit` carries the state itself and assigns all of it to the model at the end of each epoch, often more frequently.
# With the copies and checks of an ordinary assignment, that took a fifth of a short epoch.

_from_fit: contextvars.ContextVar[bool] = contextvars.ContextVar("_from_fit", default=False)


def from_fit(sync: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer.jax_state_sync` to assign the results of `fit` to the model without copies."""

    @functools.wraps(sync)
    def syncing(self: Model) -> Any:
        with setting(_from_fit, True):
            return sync(self)

    return syncing


def is_from_fit() -> bool:
    """Returns whether the caller is inside `Trainer.jax_state_sync`, which assigns results of `fit` to a model."""
    return _from_fit.get()


def stored_at_once(made: Variable, value: object) -> bool:
    """Stores an array directly in a variable, faster than `assign`; returns False if only `assign` can store it."""
    here, device_assignment = ambient(), made.device_assignment
    if here.store is not None or here.replica is not None or device_assignment is None:
        return False
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return False
    if (value.shape, value.dtype) != (made.shape, made.dtype):
        return False
    if value.is_deleted():  # Donated to a step that failed.
        made.store(value)
        lose_deleted(made)
        return True
    if device_assignment.spans_processes:
        return False
    if made.per_replica:
        return _store_components(made, value)
    if not (_from_fit.get() and value.sharding.is_equivalent_to(device_assignment.replicated, value.ndim)):
        return False
    made.store(value)
    return True


def lose_deleted(variable: Variable) -> None:
    """Makes reads of a variable fail if its array was donated to a failed step of `fit`."""
    value = variable.stored_value()
    if isinstance(value, jax.Array) and value.is_deleted():
        variable.lose("it was donated to a step of fit that did not end")


def _store_components(made: Variable, value: jax.Array) -> bool:
    """Stores `value` in a sync-on-read variable's components by one compiled call, if possible; returns whether it did.

    For a mean, each component is a copy of `value`; for a sum, the components add up to `value`. With
    `deterministic=True` the first replica gets the whole sum, as the sum of three thirds is not always the whole.
    """
    is_sum = made.aggregation is VariableAggregation.SUM
    floating = jnp.issubdtype(made.dtype, jnp.floating)
    if not (floating and (is_sum or made.aggregation is VariableAggregation.MEAN)):
        return False
    if not value.sharding.device_set <= set(made.device_assignment.devices):
        return False
    how = "copies" if not is_sum else "first" if getattr(made.strategy, "deterministic", False) else "parts"
    whole = jax.device_put(value, made.device_assignment.replicated)
    with keeping_width_of([whole]):
        made.store(_spread(made.device_assignment, how)(whole))
    return True


@functools.lru_cache(maxsize=64)
def _spread(device_assignment: DeviceAssignment, how: str) -> Callable[[Any], Any]:
    slots = device_assignment.slots

    def spread(value: jax.Array) -> Any:
        if how == "first":
            return jnp.zeros((slots.count, *value.shape), value.dtype).at[0].set(value)
        part = value / slots.replicas if how == "parts" else value
        return jnp.broadcast_to(part, (slots.count, *value.shape))

    return jax.jit(spread, out_shardings=device_assignment.sharded)


keras = load()

if TYPE_CHECKING:
    KerasVariable: TypeAlias = _KerasVariable
else:
    KerasVariable = keras.Variable
# An attribute of a variable without a value: the class of what creates it. In a stateless scope, as when `fit` builds a
# model, Keras initializes variables at the end of the scope, where it does not know that any more.
_DEFERRED_BY = "_mirrored_deferred_by"
_SEED_NAME = "seed_generator_state"
# 2**32 / golden ratio, rounded to an odd number: replicas' seeds are far apart, and replica 0 keeps the user's seed.
_SEED_STRIDE = 0x9E3779B9


class StrategyVariable(KerasVariable):  # type: ignore[misc]
    """A Keras variable whose value is stored in a `mirrored.Variable` of a strategy.

    Keras stores a variable's array in `_value`. Here `_value` is a property that reads and assigns the backing
    variable. So compiled functions capture reads, tapes record them, and assignments follow the variable's rules.
    """

    @property
    def mirrored(self) -> Variable | None:
        """The `mirrored.Variable` that stores the value; None before Keras initializes the variable."""
        return self.__dict__.get("_mirrored")

    @property
    def _value(self) -> Any:
        return None if self.mirrored is None else self.read_value()

    @_value.setter
    def _value(self, value: Operand | None) -> None:
        if value is None:
            # Keras defers the value, or releases one that `fit` carries itself, and assigns the value later.
            if self.mirrored is None:
                self.__dict__[_DEFERRED_BY] = type(maker())
            return
        if self.mirrored is None:
            self.back(value)
        else:
            announce_write((self.mirrored,))
            _assign(self, self.mirrored, value)

    @property
    def value(self) -> Any:
        """The current value of the variable, by a single read; Keras' own property reads the value twice."""
        if self.mirrored is None or in_stateless_scope():
            return super().value
        return autocast(self, self.read_value())

    def _convert_to_tensor(self, value: object, dtype: str | None = None) -> Any:
        # Keras would alias the memory of an aligned NumPy array, and JAX copies from it only later: the program could
        # have changed it by then.
        return super()._convert_to_tensor(owned(value), dtype)

    def back(self, value: Operand) -> None:
        """Creates the `mirrored.Variable` that stores this Keras variable's value from now on."""
        self.__dict__["_mirrored"] = _made_for(self, value)
        self.__dict__.pop(_DEFERRED_BY, None)

    def read_value(self) -> Any:
        """Returns the current value of the variable, and lets gradient tapes record the read."""
        assert self.mirrored is not None
        here = ambient()
        store = here.store
        if in_stateless_scope() and (store is None or isinstance(store, ScopeStore)):
            # Keras infers shapes, runs the loop of a recurrent layer, or calls a model with values for other variables:
            # this one is read eagerly. A tape around the call must see the read, or the gradient would be None.
            with eager(), within(store=None):
                value = on_device_of_loop(self.mirrored.checked_value())
        elif in_stateless_scope() and store is not None and not store.captures and not here.listeners:
            with eager():  # the loop of a recurrent layer in an eager run, which computes at once
                value = self.mirrored.checked_value()
        elif in_eager_operation() and not here.listeners and (store is None or not store.captures):
            with eager():
                value = self.mirrored.checked_value()
        else:
            outside = store is None and here.replica is None and here.runner is None
            value = exact_statistic(self.mirrored) if outside else None
            value = self.mirrored.checked_value() if value is None else value
        known = self.mirrored.backs
        if (known is None or known() is not self) and self.announced is self:  # first read, also of a copy of a layer
            self.mirrored.backs = weakref.ref(self)
        return announce_read(self.announced, value)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # Keras' own method has no `copy` argument, so NumPy would warn on every conversion.
        return np.array(self.value, dtype, copy=copy)

    @property
    def announced(self) -> Any:
        """The object by which gradient tapes identify this variable."""
        return self

    @property
    def serial(self) -> int:
        """The number of the variable in the order of creation; variables created later have larger numbers."""
        return -1 if self.mirrored is None else self.mirrored.serial

    @property
    def components(self) -> tuple[Any, ...]:
        """The values that the replicas hold for this variable, one per replica."""
        return () if self.mirrored is None else tuple(getattr(self.mirrored, "values", (self.mirrored,)))


class View(StrategyVariable):
    """A Keras variable that stands for an existing `mirrored.Variable` and shares its value.

    Layers and optimizers that require Keras variables use it.
    """

    def __init__(self, variable: Variable) -> None:
        self.__dict__["_mirrored"] = variable
        name = variable.name.replace("/", "_").replace(":", "_")
        super().__init__(
            lambda *_args, **_kwargs: None,
            shape=variable.component_shape,
            dtype=str(variable.dtype),
            trainable=variable.trainable,
            name=name,
        )
        self.constraint = variable.constraint

    @property
    def announced(self) -> Any:
        """The underlying `mirrored.Variable`, by which gradient tapes identify this Keras variable.

        So its gradient can be requested by either object.
        """
        return self.mirrored

    def _initialize_with_initializer(self, initializer: object) -> None:
        """Has no effect: the `mirrored.Variable` already has a value."""

    def _deferred_initialize(self) -> None:
        """Drops the initializer: the backing variable already has a value."""
        drop_initializer(self)


def as_keras(variable: object) -> Any:
    """Returns the Keras variable that stands for a `mirrored.Variable`; returns other objects unchanged."""
    if not isinstance(variable, Variable):
        return variable
    view = variable.__dict__.get("_keras_view")
    if view is None:
        view = variable.__dict__["_keras_view"] = View(variable)
    return view


def adopt(variable: KerasVariable) -> None:
    """Turns a plain Keras variable into a `StrategyVariable`, in place."""
    if type(variable) is KerasVariable:
        variable.__dict__.pop("_value", None)
        variable.__class__ = StrategyVariable


def _made_for(variable: KerasVariable, value: Operand) -> Variable:
    maker_class = variable.__dict__.get(_DEFERRED_BY, type(maker()))
    synchronization, aggregation = _rules_of(variable, maker_class)
    # Without a replica: a layer is built once, also inside run, so the first replica creates the variable for all.
    with within(replica=None, runner=None):
        made = Variable(
            value,
            trainable=bool(variable.trainable),
            name=variable.path,
            dtype=stored_dtype(variable),
            synchronization=synchronization,
            aggregation=aggregation,
        )
        made.internal = issubclass(maker_class, keras.optimizers.Optimizer)
        made.is_random_state = _is_seed(variable)
        if _is_seed(variable) and made.num_replicas > 1:
            with within(store=None):
                made.share_of = _seed_of  # whoever assigns: a checkpoint, for instance, knows nothing of Keras
                made.assign(_seeds_of(made, np.asarray(made.stored_component(0))))
            made.await_value()
    return made


def _rules_of(variable: KerasVariable, maker_class: type) -> tuple[VariableSynchronization, VariableAggregation]:
    given = VariableAggregation[variable.aggregation.upper()]
    if _is_seed(variable):
        return VariableSynchronization.ON_READ, VariableAggregation.ONLY_FIRST_REPLICA
    if variable.synchronization == "on_read":
        return VariableSynchronization.ON_READ, given
    # Layers create their statistics without an aggregation, or with "mean". The state of a spectral normalization
    # depends on the weights only, so that it is equal on all replicas.
    is_statistic = (
        issubclass(maker_class, keras.layers.Layer)
        and not issubclass(maker_class, keras.layers.SpectralNormalization)
        and given in (VariableAggregation.NONE, VariableAggregation.MEAN)
        and not variable.trainable
        and jnp.issubdtype(stored_dtype(variable), jnp.floating)
    )
    if is_statistic:
        return VariableSynchronization.ON_READ, VariableAggregation.MEAN
    # Keras' optimizers declare ONLY_FIRST_REPLICA for their own state. With NONE, the replication check proves instead
    # that the values are equal, as they are after the all-reduce.
    if given is VariableAggregation.ONLY_FIRST_REPLICA and issubclass(maker_class, keras.optimizers.Optimizer):
        given = VariableAggregation.NONE
    return VariableSynchronization.ON_WRITE, given


def _is_seed(variable: KerasVariable) -> bool:
    return bool(variable.name == _SEED_NAME)


def _seeds_of(made: Variable, state: Operand) -> PerReplica:
    """Returns the seed generator states of all replicas, with equal counters and different seeds."""
    first = as_array(state, made.dtype)
    # Outside of functions, each of several processes assigns the components of its own replicas.
    replicas = made.device_assignment.addressable_replicas if ambient().store is None else range(made.num_replicas)
    return PerReplica([_seed_of(first, replica) for replica in replicas], made.device_assignment)


def _seed_of(state: Operand, replica: int | jax.Array) -> Any:
    """Returns the seed generator state of one replica, whose index may be a tracer."""
    first = as_array(state)
    return first.at[0].add(jnp.asarray(replica, first.dtype) * np.asarray(_SEED_STRIDE).astype(first.dtype))


def _assign(variable: KerasVariable, made: Variable, value: Operand) -> None:
    if _is_seed(variable) and made.num_replicas > 1 and ambient().replica is None:
        # Keras may return the state on the devices of several workers: a worker places its seeds from its own copy.
        value = _seeds_of(made, np.asarray(value) if made.device_assignment.spans_processes else value)
    if not stored_at_once(made, value):
        made.assign(value, read_value=False)
