"""Lets `mirrored.assign` and `mirrored.unmirror` accept Keras variables in pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrored.errors import ArgumentTypeError
from mirrored.integrations.keras.variables import StrategyVariable, keras

if TYPE_CHECKING:
    from keras import Variable as KerasVariable

    from mirrored.variables import Variable


class KerasBridge:
    """Adapter that lets `mirrored.assign` and `mirrored.unmirror` accept Keras variables.

    `mirrored.mirror` returns Keras variables unchanged.
    """

    def converts(self, value: object) -> bool:
        """Returns whether `value` is a Keras variable."""
        return isinstance(value, keras.Variable)

    def mirror(self, value: KerasVariable, path: str) -> KerasVariable:
        """Returns the Keras variable unchanged, because a strategy's scope mirrors Keras variables at creation."""
        del path
        return value

    def unmirror(self, values: list[KerasVariable]) -> list[Any]:
        """Returns the current values of Keras variables."""
        return [variable.value for variable in values]

    def assignment_target(self, value: object) -> tuple[Variable, Callable[[Any], Any]] | None:
        """Returns the `mirrored.Variable` behind a Keras variable, and a function that converts new values for it.

        Raises:
            ArgumentTypeError: No `mirrored.Variable` stores the value of the Keras variable.
        """
        if not isinstance(value, keras.Variable):
            return None
        if not isinstance(value, StrategyVariable) or value.mirrored is None:
            raise ArgumentTypeError(
                "mirrored.assign",
                found=f"the Keras variable {value.path!r} was made before the first strategy.scope(), or has no value",
                rule="only variables of mirrored can be assigned, and the Keras variables that they store",
                remedy="call variable.assign(value), or make the model inside `with strategy.scope():`",
            )
        return value.mirrored, _value_of


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, keras.Variable) else value


BRIDGE = KerasBridge()
