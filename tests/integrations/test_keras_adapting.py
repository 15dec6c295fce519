"""`adapt` of Keras' layers reads datasets, lists and generators of batches; the statistics are those of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.data import Dataset
from mirrored.errors import ArgumentError
from mirrored.integrations.keras import keras

X = np.random.default_rng(0).normal(3.0, 2.0, (10, 3)).astype(np.float32)
Y = np.arange(10, dtype=np.float32)


class Batches(keras.utils.PyDataset):  # type: ignore[misc, name-defined]
    """The rows of an array, in batches."""

    def __init__(self, rows: Any, labels: Any = None) -> None:
        super().__init__()
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return -(-len(self.rows) // 4)

    def __getitem__(self, index: int) -> Any:
        part = slice(4 * index, 4 * index + 4)
        return self.rows[part] if self.labels is None else (self.rows[part], self.labels[part])


def in_parts(rows: Any) -> list[Any]:
    return [rows[start : start + 4] for start in range(0, len(rows), 4)]


# The last batch has fewer rows.
SOURCES: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x,
    "JAX array": jnp.asarray,
    "Dataset": lambda x: Dataset.from_tensor_slices(x).batch(4),
    "tf.data.Dataset": lambda x: tf.data.Dataset.from_tensor_slices(x).batch(4),
    "pairs": lambda x: tf.data.Dataset.from_tensor_slices((x, Y)).batch(4),
    "map of pairs": lambda x: tf.data.Dataset.from_tensor_slices((x, Y)).batch(4).map(lambda a, b: a),
    "generator dataset": lambda x: Dataset.from_generator(lambda: iter(x)).batch(4),
    "PyDataset": Batches,
    "PyDataset of pairs": lambda x: Batches(x, Y),
    "list": in_parts,
    "list of JAX arrays": lambda x: [jnp.asarray(part) for part in in_parts(x)],
    "generator": lambda x: iter(in_parts(x)),
}
AXES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "last": (-1, (0,)),
    "none": (None, (0, 1)),
    "first of features": (1, (0,)),
    "several": ((1,), (0,)),
}


def statistics(layer: Any) -> tuple[Any, Any]:
    return np.asarray(layer.mean).squeeze(), np.asarray(layer.variance).squeeze()


def same(layer: Any, x: Any, axes: tuple[int, ...] = (0,)) -> None:
    mean, variance = statistics(layer)
    np.testing.assert_allclose(mean, x.mean(axes), rtol=1e-5)
    np.testing.assert_allclose(variance, x.var(axes), rtol=1e-5)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_mean_and_variance_are_those_of_all_rows(source: str, axis: str) -> None:
    kept, reduced = AXES[axis]
    layer = keras.layers.Normalization(axis=kept)
    layer.adapt(SOURCES[source](X))
    same(layer, X, reduced)
    expected = (X - X.mean(reduced)) / X.std(reduced)
    np.testing.assert_allclose(np.asarray(layer(X)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float64])
@pytest.mark.parametrize("source", ["Dataset", "tf.data.Dataset", "list", "PyDataset"])
def test_data_of_other_types(source: str, dtype: Any) -> None:
    x = np.arange(30, dtype=dtype).reshape(10, 3)
    layer = keras.layers.Normalization()
    layer.adapt(SOURCES[source](x))
    same(layer, x.astype(np.float64))


@pytest.mark.parametrize("make", [Dataset.from_tensor_slices, tf.data.Dataset.from_tensor_slices])
def test_images_and_rows_that_are_not_batched(make: Callable[[Any], Any]) -> None:
    images = np.random.default_rng(1).normal(size=(7, 4, 4, 3)).astype(np.float32)
    layer = keras.layers.Normalization(axis=-1)
    layer.adapt(make(images).batch(3))
    same(layer, images, (0, 1, 2))
    layer = keras.layers.Normalization(axis=(1, 3))
    layer.adapt(make(images).batch(3))
    same(layer, images, (0, 2))
    layer = keras.layers.Normalization()
    layer.adapt(make(X))  # as Keras, which makes batches of vectors
    same(layer, X)


def test_adapt_again_begins_again_and_checks_the_shape() -> None:
    layer = keras.layers.Normalization()
    for rows in (X, 5 * X[:7], X[3:]):
        layer.adapt(Dataset.from_tensor_slices(rows).batch(4))
        same(layer, rows)
    with pytest.raises(ValueError, match="incompatible shape"):
        layer.adapt(Dataset.from_tensor_slices(X[:, :2]).batch(4))
    same(layer, X[3:])
    with pytest.raises(ValueError, match="empty iterable"):
        layer.adapt([])


def test_invert() -> None:
    layer = keras.layers.Normalization(invert=True)
    layer.adapt(Dataset.from_tensor_slices(X).batch(4))
    np.testing.assert_allclose(np.asarray(layer((X - X.mean(0)) / X.std(0))), X, rtol=1e-4)


@pytest.mark.parametrize("source", [name for name in SOURCES if "pairs" not in name])
def test_bins_are_those_of_all_rows(source: str) -> None:
    layer = keras.layers.Discretization(num_bins=4)
    layer.adapt(SOURCES[source](X))
    whole = keras.layers.Discretization(num_bins=4)
    whole.adapt(X)
    np.testing.assert_allclose(layer.bin_boundaries, whole.bin_boundaries, atol=0.5)
    np.testing.assert_allclose(layer.bin_boundaries, np.quantile(X, [0.25, 0.5, 0.75]), atol=0.5)
    assert np.array_equal(np.asarray(layer(X)), np.digitize(X, layer.bin_boundaries))


def test_bins_of_some_steps_and_after_a_reset() -> None:
    data = Dataset.from_tensor_slices(X).batch(4).repeat()
    layer, first = keras.layers.Discretization(num_bins=3), keras.layers.Discretization(num_bins=3)
    layer.adapt(data, steps=1)
    first.adapt(X[:4])
    assert layer.bin_boundaries == first.bin_boundaries
    layer.adapt(data, steps=1)  # `adapt` resets the state
    assert layer.bin_boundaries == first.bin_boundaries
    layer.reset_state()
    layer.update_state(X[:4])
    layer.finalize_state()
    assert layer.bin_boundaries == first.bin_boundaries


@pytest.mark.parametrize("layer", [keras.layers.Normalization, lambda: keras.layers.Discretization(num_bins=2)])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("iterated", [False, True])
def test_a_distributed_dataset_is_refused(layer: Callable[[], Any], replicas: int, iterated: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=replicas)
    data = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X).batch(4))
    with pytest.raises(ArgumentError, match=r"\.adapt: a Distributed[\s\S]*before it is distributed"):
        layer().adapt(iter(data) if iterated else data)


@pytest.mark.parametrize("source", ["array", "Dataset", "list"])
def test_a_model_in_a_scope_trains_as_on_one_device(source: str) -> None:
    def losses(strategy: Any) -> Any:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layer = keras.layers.Normalization()
            layer.adapt(SOURCES[source](X))
            model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        same(layer, X)
        data = Dataset.from_tensor_slices((X, Y[:, None])).batch(4)
        return model.fit(data, validation_data=data, epochs=2, verbose=0).history

    one, two = (losses(mr.MirroredStrategy(["CPU:0"], num_replicas=count)) for count in (1, 2))
    assert one.keys() == two.keys() == {"loss", "val_loss"}
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-4)


def test_a_layer_adapted_in_a_replica_function_and_saved(tmp_path: Any) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        layer = keras.layers.Normalization()
        layer.adapt(Dataset.from_tensor_slices(X).batch(4))
        model = keras.Sequential([keras.Input((3,)), layer])
    batch = next(iter(strategy.experimental_distribute_dataset([X])))
    expected = (X - X.mean(0)) / X.std(0)
    outputs = strategy.gather(strategy.run(lambda x: model(x), args=(batch,)), axis=0)
    np.testing.assert_allclose(np.asarray(outputs), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    same(loaded.layers[0], X)
