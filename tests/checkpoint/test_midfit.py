"""Checkpoints saved during `fit`, while another restore still waits for state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def made(*, input_known: bool = True, eagerly: bool = False) -> Any:
    """A model in the scope of two replicas."""
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        layers = [keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers] if input_known else layers)
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], run_eagerly=eagerly)
    return model


@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "run_eagerly"])
@pytest.mark.parametrize("waits", [False, True], ids=["nobody waits", "another restore waits"])
@pytest.mark.long
def test_a_save_in_a_callback_holds_the_weights_after_that_step(tmp_path: Path, eagerly: bool, waits: bool) -> None:
    other, waiting = made(), made(input_known=False)
    path = Checkpoint(model=other).save(tmp_path / "other")
    pending = Checkpoint(model=waiting)
    if waits:
        pending.restore(path).expect_partial()
    keras.utils.set_random_seed(5)
    model = made(eagerly=eagerly)
    checkpoint = Checkpoint(model=model, optimizer=model.optimizer)
    saved: list[str] = []

    class Saver(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            saved.append(checkpoint.save(tmp_path / "c"))

    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Saver()])
    keras.utils.set_random_seed(5)
    reference = made()
    assert len(saved) == 6
    for number, path in enumerate(saved):
        start = number % 3 * 8
        reference.train_on_batch(X[start : start + 8], Y[start : start + 8])
        checkpoint.restore(path).assert_existing_objects_matched()
        assert int(model.optimizer.iterations) == number + 1
        for got, expected in zip(model.get_weights(), reference.get_weights(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    if waits:
        waiting.build((None, 4))
        for got, expected in zip(waiting.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(got, expected)
