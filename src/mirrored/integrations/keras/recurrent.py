"""Keeps the states of stateful recurrent layers in `fit`, `evaluate` and `predict`.

With ``stateful=True`` a layer continues each batch from the states after the previous one. It does not list the
variables of the states. On TensorFlow a step assigns them. On JAX, Keras' step returns only the values of the
variables that the model lists, and so drops the states: each batch would begin from zeros. Here `variables` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import number_path
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Layer
    from keras import Variable as KerasVariable

keras = load()
_RNN: Final[Any] = keras.layers.RNN


def connect_recurrent() -> None:
    """Patches `keras.layers.RNN` so that its `variables` list the states of a stateful layer."""
    replace("keras", _RNN, "variables", property(_with_states(_RNN.variables)))


def _with_states(variables: property) -> Any:
    def with_states(self: Layer) -> list[KerasVariable]:
        """List of all layer state, including random seeds, and the states if the layer is stateful."""
        found: list[KerasVariable] = variables.__get__(self)
        states = vars(self).get("states") if vars(self).get("stateful") else None
        known = {id(variable) for variable in found}
        for number, state in enumerate(keras.tree.flatten(states or [])):
            if number:
                number_path(state, number)
            if id(state) not in known:
                found.append(state)
        return found

    return with_states
