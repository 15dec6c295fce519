"""Tapes watch a `mirrored.Variable` that a Keras layer uses, by the variable or by its Keras variable."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import keras
import pytest

import mirrored as mr
from mirrored.integrations.keras.variables import as_keras
from mirrored.tape.forward_accumulator import ForwardAccumulator


class Layer(keras.layers.Layer):
    def __init__(self, factor: mr.Variable) -> None:
        super().__init__()
        self.factor = factor
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("accessed", [True, False])
@pytest.mark.parametrize("by_view", [True, False])
def test_watching_either_watches_both(by_view: bool, accessed: bool, trainable: bool) -> None:
    variable = mr.Variable(3.0, trainable=trainable)
    layer = Layer(variable)
    [view] = layer.variables
    assert view is as_keras(variable) is not variable
    with mr.GradientTape(persistent=True, watch_accessed_variables=accessed) as tape:
        tape.watch(view if by_view else variable)
        y = layer(jnp.array(2.0)) * variable
    assert [float(tape.gradient(y, one)) for one in (view, variable)] == [12.0, 12.0]
    assert tape.watched_variables() == (variable,)


def test_a_direction_of_either() -> None:
    variable = mr.Variable(3.0)
    for primal in (variable, as_keras(variable)):
        with ForwardAccumulator(primal, jnp.array(1.0)) as accumulator:
            y = variable * variable
        assert float(accumulator.jvp(y)) == 6.0
