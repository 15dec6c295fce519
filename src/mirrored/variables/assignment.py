"""`Assignment`: one call of `assign`, `assign_add` or `assign_sub`, and the check that the value fits the variable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.putting import as_array
from mirrored.errors import VariableError
from mirrored.variables.kinds import check_kind

_COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "assign": lambda old, new: new,
    "assign_add": lambda old, new: old + new,
    "assign_sub": lambda old, new: old - new,
}


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A call of `assign`, `assign_add` or `assign_sub`.

    Attributes:
        variable: The variable that is assigned.
        method: ``"assign"``, ``"assign_add"`` or ``"assign_sub"``.
        where: The line of user code that makes the call.
        called: The call as the user wrote it, for messages.
        read_value: Whether the caller receives the new value.
    """

    variable: Any
    method: str
    where: str
    called: str
    read_value: bool = True

    @property
    def replaces(self) -> bool:
        """Whether the new value does not depend on the old one."""
        return self.method == "assign"

    def old(self) -> Any:
        """Returns the stored value to combine with; None for `assign`.

        `assign` does not read the old value, so it also works on a variable whose value is lost.
        """
        return None if self.replaces else self.variable.stored()

    def combined(self, old: Any, value: Any) -> Any:
        """Returns the new value (or component), after checking that `value` fits the variable.

        Raises:
            VariableError: The shape of `value` differs from the variable's, or its dtype would lose information.
        """
        variable = self.variable
        shape = np.shape(value)
        if shape != variable.shape:
            raise VariableError(
                self.called,
                found=f"a value of shape {shape} for variable {variable.name!r} of shape {variable.shape}",
                rule="an assigned value has the variable's shape",
                remedy="reshape or broadcast it: jnp.broadcast_to(value, variable.shape)",
            )
        check_kind(value, variable.dtype, self.called, variable.name)
        new = _COMBINE[self.method](old, as_array(value, variable.dtype))
        return new if jnp.issubdtype(variable.dtype, jax.dtypes.extended) else new.astype(variable.dtype)


def aggregation_name(aggregation: Any) -> str:
    """Returns the name of an aggregation, for messages."""
    return str(getattr(aggregation, "name", None) or getattr(aggregation, "__name__", repr(aggregation)))
