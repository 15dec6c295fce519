"""One assignment: what is called, on which variable, with what; and whether the value fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored.errors import VariableError

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
    """

    variable: Any
    method: str
    where: str
    called: str

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
        given = getattr(value, "dtype", None)
        if given is not None and not _casts(given, variable.dtype):
            raise VariableError(
                self.called,
                found=f"a value of dtype {given} for variable {variable.name!r} of dtype {variable.dtype}",
                rule="a value is cast only where its kind is kept (float to float, int to int or float)",
                remedy=f"cast it on purpose: value.astype({str(variable.dtype)!r})",
            )
        return _COMBINE[self.method](old, jnp.asarray(value, variable.dtype)).astype(variable.dtype)


def _casts(given: Any, wanted: Any) -> bool:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    rank = [next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), None) for dtype in (given, wanted)]
    if rank[0] is None or rank[1] is None:
        return bool(given == wanted)
    return rank[0] <= rank[1]


def aggregation_name(aggregation: Any) -> str:
    """What to call an aggregation in a message."""
    return str(getattr(aggregation, "name", None) or getattr(aggregation, "__name__", repr(aggregation)))
