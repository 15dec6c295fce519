"""Saved programs of sync-on-read variables: after loading, they have one value, the aggregate of their components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError

AGGREGATIONS = {"SUM": 3.0, "MEAN": 1.5, "ONLY_FIRST_REPLICA": 1.0}


class Counter(tf.Module):
    def __init__(self, aggregation: str) -> None:
        super().__init__()
        self.seen = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=getattr(tf.VariableAggregation, aggregation),
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return tf.reduce_sum(x) + self.seen

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])  # type: ignore[untyped-decorator]
    def count(self, delta: Any) -> Any:
        self.seen.assign(self.seen + 1.0)
        for _ in tf.range(3):
            self.seen.assign(self.seen + delta)
        return self.seen.read_value()


@pytest.mark.first(1)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_saved_program_reads_and_assigns_the_aggregate(aggregation: str, tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        module = Counter(aggregation)

    def number() -> None:
        context = tf.distribute.get_replica_context()
        assert context is not None
        module.seen.assign(tf.cast(context.replica_id_in_sync_group, tf.float32) + 1)

    strategy.run(number)
    expected = AGGREGATIONS[aggregation]
    assert float(module(tf.zeros([2]))) == expected
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert float(loaded(tf.zeros([2]))) == expected
    assert float(loaded.count(2.0)) == expected + 7
    assert float(loaded.seen.numpy()) == expected + 7


@pytest.mark.long
@pytest.mark.parametrize("how", ["reads", "assigns"])
def test_a_program_that_uses_components_is_refused(how: str, tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    class Running(Counter):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])  # type: ignore[untyped-decorator]
        def per_replica(self, x: Any) -> Any:
            def replica(x: Any) -> Any:
                return self.seen + x if how == "reads" else self.seen.assign(x)

            return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    with strategy.scope():
        module = Running("SUM")
    with pytest.raises(ArgumentError, match="exported function reads or assigns sync-on-read variable"):
        tf.saved_model.save(module, tmp_path)


@pytest.mark.first(1)
@pytest.mark.parametrize("how", ["export", "save"])
def test_a_model_with_batch_normalization_is_exported_from_several_devices(how: str, tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layers = [tf.keras.layers.Input([4]), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential(layers)
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(2, 3, size=(32, 4)).astype(np.float32)
    model.fit(x, x[:, :2], batch_size=16, epochs=1, verbose=0)
    expected = np.asarray(model(x, training=False))
    if how == "export":
        model.export(tmp_path, verbose=False)
        found = tf.saved_model.load(tmp_path).serve(x)
    else:
        tf.saved_model.save(model, tmp_path)
        found = tf.saved_model.load(tmp_path)(x)
    np.testing.assert_allclose(found, expected, atol=1e-5)
