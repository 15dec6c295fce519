"""Makes variables in a Keras `StatelessScope` use the values of the scope: `mirrored` ones, and Keras' in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp

from mirrored._jax.traces import Trace
from mirrored._typing import Operand
from mirrored.integrations.keras.private import read_stored, stored_dtype
from mirrored.integrations.keras.step_inputs import step_keys
from mirrored.integrations.keras.untracked import value_in_step
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.staged_values import Bookkeeping, VariableLike
from mirrored.runtime.variable_store import VariableStore, restoring_item
from mirrored.variables import Variable
from mirrored.variables.access import check_readable, check_writable

if TYPE_CHECKING:
    from keras import StatelessScope
    from keras import Variable as KerasVariable


class ScopedVariable(Bookkeeping):
    """A Keras variable in a `StatelessScope`, with the part of the interface `VariableLike` that blocks need.

    Args:
        scope: The scope.
        variable: The Keras variable.
    """

    device_assignment = None
    per_replica = False

    def __init__(self, scope: StatelessScope, variable: KerasVariable) -> None:
        self.scope = scope
        self.announced = variable
        self.name = variable.path

    @property
    def component_shape(self) -> tuple[int, ...]:
        """The shape of the variable."""
        return tuple(self.announced.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the variable, whatever Keras' autocast scope is."""
        return jnp.dtype(stored_dtype(self.announced))


class ScopeStore(VariableStore):
    """A variable store that reads and assigns the values in a Keras `StatelessScope`, not the variables' own values.

    Variables with a value in the scope read and update that value. Other variables behave as outside the scope.

    Args:
        scope: The Keras scope.
        views: The Keras views of our variables that have a value in the scope, by the `id` of the variable.
        base_trace: The JAX trace in which the scope was entered.

    The state of a random stream belongs to the scope too, if a training step of Keras has entered it. So do the values
    of Keras variables, which only blocks in the scope, such as branches, access by this store (`ScopedVariable`).
    """

    captures = True
    keeps_derivatives = True  # Keras differentiates the call of the scope as a pure function of the values

    def __init__(self, scope: StatelessScope, views: Mapping[int, Any], base_trace: Trace) -> None:
        self._scope = scope
        self._views = views
        self.base_trace = base_trace
        keys = step_keys()
        self._streams: dict[int, Any] = {}
        self._later: Callable[[Variable], Any] | None = None
        if keys is not None:
            self._streams, self._later = keys.initial_states()

    def whole(self, variable: VariableLike) -> Any:
        """Returns a variable's value in the `StatelessScope`, or the ordinary value if the scope has none."""
        if isinstance(variable, ScopedVariable):
            value = variable.scope.state_mapping.get(id(variable.announced))
            value = value_in_step(variable.announced) if value is None else value
            with within(store=self):
                return read_stored(variable.announced) if value is None else value
        if self._provides_stream(variable):
            return self._streams[id(variable)]
        view = self._view(variable)
        if view is None:
            value = value_in_step(cast(Variable, variable))
            if value is not None:
                return value
            check_readable(cast(Variable, variable), None, ambient())
            return variable.stored()
        return self._scope.state_mapping.get(id(view))

    def set_whole(self, variable: VariableLike, value: Operand, where: str) -> None:
        """Sets a variable's value in the `StatelessScope`, or assigns the variable if the scope has no value for it."""
        self.note(variable)
        if isinstance(variable, ScopedVariable):
            variable.scope.state_mapping[id(variable.announced)] = value
            return
        view = self._view(variable)
        if self._provides_stream(variable):
            self._streams[id(variable)] = value
        elif view is None:
            check_writable(cast(Variable, variable), None, f"assigning {variable.name}")
            variable.store(value, shared=True)  # user code may hold the array
        else:
            self._scope.state_mapping[id(view)] = value

    def local(self, variable: VariableLike, replica: int) -> Any:
        """Returns a variable's value, regardless of the replica.

        A stateless call has no replicas, so this is the value that `whole` returns.
        """
        return self.whole(variable)

    def set_local(self, variable: VariableLike, replica: int, value: Operand, where: str) -> None:
        """Assigns a variable's value, regardless of the replica.

        A stateless call has no replicas, so this is the same as `set_whole`.
        """
        self.set_whole(variable, value, where)

    def restoring(self, variable: VariableLike) -> Callable[[], None]:
        """Returns a function that resets a variable to its value at the time of this call."""
        if isinstance(variable, ScopedVariable):
            values, key = variable.scope.state_mapping, id(variable.announced)
            return restoring_item(values, key, values.get(key))
        if self._provides_stream(variable):
            return restoring_item(self._streams, id(variable), self._streams[id(variable)])
        view = self._view(variable)
        if view is None:
            stored = variable.stored()
            return lambda: variable.store(stored, shared=True)
        return restoring_item(self._scope.state_mapping, id(view), self._scope.state_mapping.get(id(view)))

    def created(self, variable: VariableLike) -> None:
        """Does nothing for a new variable: variables are created eagerly, even in a trace."""

    def _provides_stream(self, variable: VariableLike) -> bool:
        """Returns whether `variable` is a random stream with a state in this scope; creates the state at first use."""
        if self._later is None or cast(Variable, variable).words_of_step is None:
            return False
        if id(variable) not in self._streams:
            self._streams[id(variable)] = self._later(cast(Variable, variable))
        return True

    def _view(self, variable: VariableLike) -> Any:
        return None if variable.per_replica else self._views.get(id(variable))
