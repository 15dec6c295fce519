"""`assign` and `unmirror` of trees of Keras variables."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import integrations
from mirrored.integrations.keras import keras


def made(strategy: mr.MirroredStrategy) -> Any:
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.BatchNormalization()])
        model.compile("sgd", "mse")
    return model


def test_assign_takes_keras_variables_and_unmirror_reads_them() -> None:
    model = made(mr.MirroredStrategy(["CPU:0"], num_replicas=2))
    values = [np.asarray(value) for value in mr.unmirror(model.variables)]
    mr.assign(model.variables, [value + 2 for value in values])
    assert [one.numpy().tolist() for one in model.variables] == [(value + 2).tolist() for value in values]
    mr.assign({"kernel": model.layers[0].kernel}, {"kernel": jnp.zeros((2, 1))})
    assert model.layers[0].kernel.numpy().tolist() == [[0.0], [0.0]]
    mr.assign(model.layers[0].weights, made(mr.MirroredStrategy(["CPU:0"])).layers[0].weights)
    assert model.layers[0].kernel.numpy().tolist() != [[0.0], [0.0]]


@pytest.mark.parametrize("compiled", [False, True])
def test_replicas_assign_keras_variables(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    bias = made(strategy).layers[0].bias

    def step() -> None:
        strategy.run(lambda: mr.assign([bias], [mr.unmirror([bias])[0] + 1.0]))

    (mr.function(step) if compiled else step)()
    assert bias.numpy().tolist() == [1.0]


def test_an_assignment_that_fails_leaves_all_keras_variables() -> None:
    kernel, bias, *_ = made(mr.MirroredStrategy(["CPU:0"], num_replicas=2)).variables
    with pytest.raises(mr.errors.MirroredError):
        mr.assign([bias, kernel], [jnp.full(1, 9.0), jnp.ones(5)])
    assert bias.numpy().tolist() == [0.0]


def test_assign_names_the_remedy_for_models_and_variables_of_no_strategy() -> None:
    model = made(mr.MirroredStrategy(["CPU:0"], num_replicas=2))
    with pytest.raises(mr.errors.ArgumentTypeError, match="model.trainable_variables"):
        mr.assign(model, keras.Sequential())
    integrations.disconnect("keras")
    try:
        variable = keras.Variable(np.zeros(2, np.float32))
    finally:
        integrations.connect("keras")
    with pytest.raises(mr.errors.ArgumentTypeError, match=r"variable.assign\(value\)"):
        mr.assign([variable, model.layers[0].bias], [np.ones(2), np.ones(1)])
    assert model.layers[0].bias.numpy().tolist() == [0.0]
