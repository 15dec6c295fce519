"""`Assignment`: one call that assigns a variable, which checks the value and computes the variable's new value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_types import not_weakly_typed
from mirrored._jax.arrays import as_array
from mirrored._jax.promotion import promoted
from mirrored._typing import Operand
from mirrored.errors import VariableError
from mirrored.runtime.variable_store import refuse_64_bits
from mirrored.variables.rules import check_kind

_COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "assign": lambda old, new: new,
    "assign_add": lambda old, new: old + new,
    "assign_sub": lambda old, new: old - new,
}


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One call of `assign`, `assign_add` or `assign_sub`: variable, method and line of user code.

    Attributes:
        variable: The variable that is assigned.
        method: ``"assign"``, ``"assign_add"`` or ``"assign_sub"``.
        where: The line of user code that makes the call.
        called: The call as the user wrote it, for messages.
        read_value: Whether the caller receives the new value.
        aggregates: Whether the variable's aggregation applies to the values that replicas assign. False for the updates
            of an optimizer, which are computed from gradients that are reduced already.
    """

    variable: Any
    method: str
    where: str
    called: str
    read_value: bool = True
    aggregates: bool = True

    @property
    def replaces(self) -> bool:
        """Whether the call is `assign`, whose result does not depend on the variable's old value."""
        return self.method == "assign"

    def old(self) -> Any:
        """Returns the variable's value before `assign_add` or `assign_sub`; None for `assign`, which does not need it.

        So `assign` also works on a variable whose value is lost.
        """
        return None if self.replaces else self.variable.detached(self.variable.stored())

    def refuse_none(self, value: object) -> None:
        """Raises an error if the value to assign is None.

        Raises:
            VariableError: It is None.
        """
        if value is None:
            raise VariableError(
                self.called,
                found=f"the value for variable {self.variable.name!r} is None",
                rule="an assigned value must be an array or number of the variable's shape",
                remedy="assign an array, or call it only if there is a value",
            )

    def combined(self, old: Operand, value: object) -> Any:
        """Returns the new value, computed from the variable's old value and `value`, after checking shape and dtype.

        Raises:
            VariableError: The shape of `value` differs from the variable's, its dtype would lose information, or the
                variable has 64 bits and JAX computes in 32 bits.
        """
        variable = self.variable
        # A variable may have a declared shape with unknown dimensions, and its value a definite one.
        shape = getattr(getattr(value, "container", value), "component_shape", None)
        if shape is None:  # () is the shape of a scalar variable
            shape = np.shape(value)
        own = variable.component_shape if self.replaces else np.shape(old)  # `old` may be an uncommitted value
        if shape != own and not (self.replaces and variable.may_become(shape)):
            raise VariableError(
                self.called,
                found=f"the value has shape {shape}, variable {variable.name!r} has shape {own}",
                rule="an assigned value must have the variable's shape",
                remedy="reshape or broadcast it: jnp.broadcast_to(value, variable.shape)",
            )
        if self.replaces and isinstance(value, jax.Array) and value.dtype == variable.dtype:
            if variable.per_replica:  # operations, which may be in 32 bits, make its stored value of the components
                refuse_64_bits(variable, self.called)
            return not_weakly_typed(value)
        check_kind(value, variable.dtype, self.called, variable.name)
        refuse_64_bits(variable, self.called)
        new = _COMBINE[self.method](old, as_array(value, variable.dtype))
        return new if jnp.issubdtype(variable.dtype, jax.dtypes.extended) else new.astype(variable.dtype)

    def term(self, value: object) -> Any:
        """Converts a replica's value to an array for aggregation, in the wider of the value's and the variable's dtype.

        The sum of values of a narrower dtype would overflow before it is cast to the variable's dtype.
        """
        dtype, given = self.variable.dtype, getattr(value, "dtype", None)
        check_kind(value, dtype, self.called, self.variable.name)
        refuse_64_bits(self.variable, self.called)
        return as_array(value, dtype if given in (None, dtype) else promoted(jnp.result_type(value), dtype))
