"""Makes `mirrored` variables in a Keras `StatelessScope` use the values that were passed to the scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from mirrored._jax.traces import Trace
from mirrored._typing import Operand
from mirrored.integrations.keras.drawing import step_keys
from mirrored.runtime.ambient import ambient
from mirrored.runtime.staged_values import VariableLike
from mirrored.runtime.variable_store import VariableStore, restoring_item
from mirrored.variables import Variable
from mirrored.variables.access import check_readable, check_writable

if TYPE_CHECKING:
    from keras import StatelessScope


class ScopeStore(VariableStore):
    """A variable store that reads and assigns the values in a Keras `StatelessScope`, not the variables' own values.

    Variables with a value in the scope read and update that value. Other variables behave as outside the scope.

    Args:
        scope: The Keras scope.
        views: The Keras views of our variables that have a value in the scope, by the `id` of the variable.
        base_trace: The JAX trace in which the scope was entered.

    The state of a random stream belongs to the scope too, if a training step of Keras has entered it.
    """

    captures = True

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
        if self._provides_stream(variable):
            return self._streams[id(variable)]
        view = self._view(variable)
        if view is None:
            check_readable(cast(Variable, variable), None, ambient())
            return variable.stored()
        return self._scope.get_current_value(view)

    def set_whole(self, variable: VariableLike, value: Operand, where: str) -> None:
        """Sets a variable's value in the `StatelessScope`, or assigns the variable if the scope has no value for it."""
        self.note(variable)
        view = self._view(variable)
        if self._provides_stream(variable):
            self._streams[id(variable)] = value
        elif view is None:
            check_writable(cast(Variable, variable), None, f"assigning {variable.name}")
            variable.store(value, shared=True)  # user code may hold the array
        else:
            self._scope.add_update((view, value))

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
