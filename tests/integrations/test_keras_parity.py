"""30 steps of Keras on 1, 2 and 4 replicas equal single-device Keras to 1e-5, in a custom loop and in `fit`.

The convolutional model has a `SyncBatchNormalization`: a custom loop's plain BatchNormalization normalises each
replica's share by itself, as in TensorFlow. In `fit` both take the statistics of the whole batch.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from integrations.keras_models import Trained, train_by_fit, train_by_keras, train_by_loop

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
def test_custom_loop(kind: str, replicas: int) -> None:
    assert_same(train_by_loop(kind, replicas, STEPS), expected(kind))


@cases
def test_fit(kind: str, replicas: int) -> None:
    assert_same(train_by_fit(kind, replicas, STEPS), expected(kind))
