"""Batches that are not divisible by the number of replicas: padded with a mask, or split unevenly."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.errors import StructureError
from mirrored.integrations.keras import keras
from mirrored.strategies import reducing

X = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)


def padded(strategy: Any, size: int = 8) -> Any:
    dataset = Dataset.from_tensor_slices(X).batch(size)
    return strategy.experimental_distribute_dataset(dataset, InputOptions(last_batch="pad"))


@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.first(2)
def test_metrics_with_the_mask_are_those_of_the_examples(way: Any) -> None:
    with way.strategy.scope():
        mean = keras.metrics.Mean()
        accuracy = keras.metrics.BinaryAccuracy()

    @way.compile
    def step(x: Any, mask: Any) -> None:
        def replica(x: Any, mask: Any) -> None:
            mean.update_state(x[:, 0], sample_weight=mask)
            accuracy.update_state(jnp.ones((x.shape[0], 1)), x[:, :1] > 0, sample_weight=mask)

        way.strategy.run(replica, args=(x, mask))

    for x, mask in padded(way.strategy):
        step(x, mask)
    np.testing.assert_allclose(float(mean.result()), X[:, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(float(accuracy.result()), (X[:, 0] > 0).mean(), rtol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_batch_statistics_with_the_mask_are_those_of_the_examples(replicas: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True, momentum=0.0)
        layer.build((None, 3))

    @mr.function
    def step(x: Any, mask: Any) -> Any:
        return strategy.run(lambda x, mask: layer(x, training=True, mask=mask), args=(x, mask))

    for x, mask in padded(strategy, size=13 if replicas == 1 else 12):
        step(x, mask)
    last = X if replicas == 1 else X[12:]
    np.testing.assert_allclose(np.asarray(layer.moving_mean), last.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(layer.moving_variance), last.var(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "replicas", "refused"),
    [((4, 2, 7), 2, 3), ((3, 4, 1), 2, None), ((3, 4, 5), 2, 3), ((3, 2, 4), 1, 3), ((1, 2, 3), 4, None)],
)
def test_padded_batches_have_the_size_of_the_first(sizes: tuple[int, ...], replicas: int, refused: int | None) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    batches = np.split(X, np.cumsum(sizes))[:-1]
    distributed = strategy.distribute_dataset(batches, InputOptions(last_batch="pad"))
    shapes, read = set(), []
    error = (
        contextlib.nullcontext()
        if refused is None
        else pytest.raises(StructureError, match=rf"batch {refused} has {sizes[refused - 1]} examples[\s\S]*rebatch")
    )
    with error:
        read.extend(distributed)
    assert len(read) == (len(sizes) if refused is None else refused - 1)
    for element, batch in zip(read, batches, strict=False):
        x, mask = (np.concatenate([np.asarray(part) for part in strategy.local_results(one)]) for one in element)
        shapes.add((x.shape, mask.shape))
        np.testing.assert_array_equal(x[mask], batch)
    assert len(shapes) == 1


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_means_of_means_over_an_uneven_batch_are_warned_of(
    compiled: bool, nested: bool, mapped: bool, uneven: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A run in a merge, whose arguments are even, set the flag of the run around it in eager runs."""
    reducing._warn_of_mean_of_means.cache_clear()
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica(x: Any) -> Any:
        if nested:
            mr.get_replica_context().merge_call(lambda strategy: strategy.run(lambda: jnp.ones(())))
        return x.mean()

    def step(x: Any) -> Any:
        loss = strategy.run(replica, args=(x,))
        return strategy.reduce("MEAN", jax.tree.map(lambda one: one * 2, loss) if mapped else loss, axis=None)

    with caplog.at_level(logging.WARNING, "mirrored"):
        for x in strategy.experimental_distribute_dataset([X[: 5 if uneven else 6]]):
            (mr.function(step) if compiled else step)(x)
    assert ("mean of per-replica means" in caplog.text) == uneven


def test_means_of_equal_values_and_over_examples_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    reducing._warn_of_mean_of_means.cache_clear()
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica(x: Any) -> Any:
        return mr.get_replica_context().all_reduce("SUM", mr.losses.average_loss(x[:, 0])), x

    with caplog.at_level(logging.WARNING, "mirrored"):
        for x in strategy.experimental_distribute_dataset([X[:5]]):
            mean, rows = strategy.run(replica, args=(x,))
            found = strategy.reduce("MEAN", mean, axis=None), strategy.reduce("MEAN", rows, axis=0)[0]
    np.testing.assert_allclose(found, [X[:5, 0].mean()] * 2, rtol=1e-5)
    assert "mean of per-replica means" not in caplog.text
