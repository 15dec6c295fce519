"""Where plain variables are read and written while Keras calls a model as a function of values for its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirrored.runtime.ambient import ambient
from mirrored.runtime.variable_store import VariableStore
from mirrored.variables.contexts import check_readable, check_writable


class ScopeStore(VariableStore):
    """The frame inside one of Keras' stateless scopes: weights have the scope's values, others are as without it.

    Args:
        scope: Keras' scope.
        views: Keras' views of variables of ours that have a value in the scope, by the variable's identity.
        base_trace: The JAX trace in which the scope was entered.
    """

    captures = True

    def __init__(self, scope: Any, views: Mapping[int, Any], base_trace: Any) -> None:
        self._scope = scope
        self._views = views
        self.base_trace = base_trace

    def whole(self, variable: Any) -> Any:
        """The scope's value."""
        view = self._view(variable)
        if view is None:
            check_readable(variable, None, ambient())
            return variable.stored()
        return self._scope.get_current_value(view)

    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        """An update of the scope's."""
        view = self._view(variable)
        if view is None:
            check_writable(variable, None, f"assigning {variable.name}")
            variable.store(value)
        else:
            self._scope.add_update((view, value))

    def local(self, variable: Any, replica: int) -> Any:
        """As `whole`."""
        return self.whole(variable)

    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        """As `set_whole`."""
        self.set_whole(variable, value, where)

    def created(self, variable: Any) -> None:
        """It is made eagerly, as everywhere in a trace."""

    def _view(self, variable: Any) -> Any:
        return None if variable.per_replica else self._views.get(id(variable))
