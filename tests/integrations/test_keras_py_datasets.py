"""The data that Keras' loops read from a `PyDataset` which changes them in `on_epoch_end`.

The expected values are those of TensorFlow 2.21 with Keras 3.15. It calls `on_epoch_end` once before the first epoch of
`fit` and `evaluate`.
"""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.integrations.keras import keras

SIZE = 4


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches whose rows, and predictions, are ten times the epoch plus the index."""

    def __init__(self, count: int | None = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epoch, self.count, self.log = 0, count, ""

    @property
    def num_batches(self) -> int | None:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.full((SIZE, 1), 10 * self.epoch + index, np.float32), np.zeros((SIZE, 1), np.float32)

    def on_epoch_begin(self) -> None:
        self.log += "b"

    def on_epoch_end(self) -> None:
        self.epoch += 1
        self.log += "e"


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Lists the numbers of the batches on which `fit` has trained, whose losses are their squares."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        before, self.total = self.total if batch else 0.0, logs["loss"] * (batch + 1)
        self.batches.append(round((self.total - before) ** 0.5))


def model(place: str, is_built: bool) -> Any:
    with mr.MirroredStrategy(jax.devices()[:2]).scope() if place == "strategy" else contextlib.nullcontext():
        first = [keras.Input((1,))] if is_built else []
        made = keras.Sequential([*first, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        made.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    return made


PLACES = pytest.mark.parametrize("place", ["no strategy", "strategy"])
WORKERS = pytest.mark.parametrize("workers", [1, 3])
BUILT = pytest.mark.parametrize("is_built", [True, False], ids=["built", "unbuilt"])


@PLACES
@WORKERS
@BUILT
@pytest.mark.first(3)
def test_every_epoch_of_fit_has_the_batches_of_that_epoch(place: str, workers: int, is_built: bool) -> None:
    data, validation, seen = Batches(workers=workers), Batches(workers=workers), Seen()
    made = model(place, is_built)
    history = made.fit(data, epochs=2, validation_data=validation, shuffle=False, verbose=0, callbacks=[seen]).history
    assert sorted(seen.batches[:3]) == [10, 11, 12]
    assert sorted(seen.batches[3:]) == [20, 21, 22]
    np.testing.assert_allclose(history["val_mae"], [11, 31])
    assert data.log == "ebebe"
    assert validation.log == "ebeebe"


@PLACES
@WORKERS
@BUILT
@pytest.mark.first(3)
def test_predict_and_evaluate_read_one_epoch(place: str, workers: int, is_built: bool) -> None:
    data, made = Batches(workers=workers), model(place, is_built)
    predictions = made.predict(data, verbose=0)[::SIZE, 0]
    assert data.log == "be"
    np.testing.assert_array_equal(predictions, [0, 1, 2])
    data = Batches(workers=workers)
    np.testing.assert_allclose(made.evaluate(data, verbose=0)[1], 11)
    assert data.log == "ebe"


@WORKERS
def test_an_endless_dataset_begins_at_its_first_batch(workers: int) -> None:
    predictions = model("no strategy", False).predict(Batches(None, workers=workers), steps=3, verbose=0)
    np.testing.assert_array_equal(predictions[::SIZE, 0], [0, 1, 2])


def test_building_a_model_draws_no_order() -> None:
    seen, order = Seen(), [10, 11, 12]
    random.seed(5)
    random.shuffle(order)
    random.seed(5)
    model("no strategy", False).fit(Batches(), shuffle=True, verbose=0, callbacks=[seen])
    assert seen.batches == order
