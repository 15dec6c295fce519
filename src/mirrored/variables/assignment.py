"""One assignment: what is called, on which variable, with what; and whether the value fits."""

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
        variable: Which variable.
        method: Which of the three.
        where: The line of user code.
        called: The call as the user wrote it, for messages.
        read_value: Whether the caller gets the new value.
    """

    variable: Any
    method: str
    where: str
    called: str
    read_value: bool = True

    @property
    def replaces(self) -> bool:
        """Whether the old value does not matter."""
        return self.method == "assign"

    def old(self) -> Any:
        """The value in storage to combine with; None where it is replaced: a lost value may be assigned over."""
        return None if self.replaces else self.variable.stored()

    def combined(self, old: Any, value: Any) -> Any:
        """The new value (or component), after checking that `value` fits.

        Raises:
            VariableError: Its shape is another, or its dtype of another kind.
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
    """What to call an aggregation in a message."""
    return str(getattr(aggregation, "name", None) or getattr(aggregation, "__name__", repr(aggregation)))
