"""30 steps of Keras on 1, 2 and 4 replicas equal single-device Keras to 1e-5, in a custom loop and in `fit`.

The convolutional model has a `SyncBatchNormalization`: a custom loop's plain BatchNormalization normalises each
replica's share by itself, as in TensorFlow. In `fit` both take the statistics of the whole batch.
"""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest

import mirrored as mr
from integrations.keras_models import Trained, train_by_fit, train_by_keras, train_by_loop
from mirrored.integrations.keras import keras

STEPS = 30
MODELS = ("dense", "conv", "lstm", "attention")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
quick = {("dense", 2), ("conv", 2)}
cases = pytest.mark.parametrize(
    ("kind", "replicas"),
    [
        pytest.param(kind, replicas, marks=[] if (kind, replicas) in quick else pytest.mark.slow)
        for kind in MODELS
        for replicas in (1, 2, 4)
    ],
)


@functools.cache
def expected(kind: str) -> Trained:
    return train_by_keras(kind, STEPS)


def assert_same(mine: Trained, theirs: Trained) -> None:
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-5, atol=1e-5)
    for a, b in zip(mine[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@cases
@pytest.mark.first(1)
def test_custom_loop(kind: str, replicas: int) -> None:
    assert_same(train_by_loop(kind, replicas, STEPS), expected(kind))


@cases
@pytest.mark.first(1)
def test_fit(kind: str, replicas: int) -> None:
    assert_same(train_by_fit(kind, replicas, STEPS), expected(kind))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.first(1)
def test_settings_changed_between_eager_updates_take_effect(wrapped):
    def updates(strategy):
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            v = keras.Variable([1.0, 2.0])
            inner = keras.optimizers.SGD(0.1)
            optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0) if wrapped else inner
            optimizer.build([v])
        apply = lambda: optimizer.apply([np.ones(2, np.float32)], [v])  # noqa: E731
        for weight_decay, clipvalue in ((None, None), (0.5, None), (0.25, 0.01)):
            inner.weight_decay, inner.clipvalue = weight_decay, clipvalue
            apply() if strategy is None else strategy.run(apply)
        return np.asarray(v.value)

    with mr.MirroredStrategy(["CPU:0"]).scope():
        pass  # connects Keras
    np.testing.assert_allclose(updates(mr.MirroredStrategy(["CPU:0"])), updates(None), rtol=1e-6)
