"""`tf.keras` and its aliases; layers that are written with `tf.Variable`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
import weakref

import jax
import numpy as np
import pytest

import mirrored.tf as tf


def test_the_namespace_is_that_of_tensorflow():
    assert tf.keras.losses.Reduction.NONE == "none"
    assert tf.keras.losses.MSE is tf.keras.losses.mean_squared_error
    assert tf.metrics is tf.keras.metrics
    assert tf.losses is tf.keras.losses
    assert tf.optimizers is tf.keras.optimizers


def test_its_modules_are_imported_by_name():
    from mirrored.tf.keras.datasets import mnist

    from mirrored.tf import keras
    from mirrored.tf.keras import layers

    assert keras is tf.keras
    assert layers.Dense is tf.keras.layers.Dense
    assert callable(mnist.load_data)


def test_it_has_the_public_modules_and_names_of_keras():
    import keras

    def missing(own, others, path):
        for name, value in vars(own).items():
            if name.startswith("_") or name == "src":
                continue
            if not hasattr(others, name):
                yield path + name
            elif isinstance(value, types.ModuleType) and not value.__name__.startswith("keras.src"):
                yield from missing(value, getattr(others, name), f"{path}{name}.")

    assert list(missing(keras, tf.keras, "tf.keras.")) == []


def test_a_class_is_registered_for_saving(tmp_path):
    @tf.keras.saving.register_keras_serializable(package="tests")
    class Doubling(tf.keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = tf.keras.Sequential([tf.keras.Input((2,)), Doubling()])
    model.save(tmp_path / "model.keras")
    restored = tf.keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(restored(np.ones((1, 2), np.float32)), [[2, 2]])
    assert tf.keras.saving.get_registered_name(Doubling) == "tests>Doubling"


def test_layers_with_plain_variables_are_called_symbolically():
    class Scale(tf.keras.layers.Layer):
        def build(self, shape):
            self.w = tf.Variable(tf.fill([shape[-1]], 3.0))

        def call(self, x):
            return x * self.w

    inputs = tf.keras.Input([2])
    model = tf.keras.Model(inputs, Scale()(inputs))
    assert model.output.shape == (None, 2)
    np.testing.assert_allclose(model(tf.constant([[1.0, 2.0]])), [[3.0, 6.0]])


@pytest.mark.long
def test_an_operation_that_draws_random_numbers_is_an_initializer():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer=tf.random.normal)])
    model.compile("sgd", tf.keras.losses.MSE)
    x = np.linspace(-1, 1, 8, dtype="f4")[:, None]
    history = model.fit(x, 2 * x, epochs=2, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]


@pytest.mark.multiprocess
@pytest.mark.long
def test_importing_keras_afterwards_takes_jax():
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    program = "import mirrored.tf, keras; print(keras.backend.backend())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.strip() == "jax"


class Choosing(tf.keras.layers.Layer):
    """Python that decides over tensors."""

    def call(self, x, training=None):
        total = tf.reduce_sum(x)
        if total > 0:
            y = x * 2.0
        else:
            y = x - 1.0
        for row in tf.range(3):
            if row > 0:
                y += tf.cast(row, tf.float32)
        return y


@pytest.mark.long
def test_converted_classes_can_go():
    def used():
        class Passing(tf.keras.layers.Layer):
            def call(self, x):
                return x if tf.reduce_sum(x) > 0 else -x

        layer = Passing()
        np.testing.assert_allclose(tf.function(lambda x: layer(x))(tf.constant([-3.0])), [3.0])
        return weakref.ref(Passing)

    passing = used()
    gc.collect()
    assert passing() is None


class Outer(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = tf.keras.Sequential([Choosing()])
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        y = self.inner(x)
        while tf.reduce_max(y) < 50.0:
            y = y * 2.0
        return y * self.scale


class Inherited(Outer):
    def call(self, x):
        return super().call(x) + 1.0


def chosen(x, offset):
    y = (x * 2.0 if x.sum() > 0 else x - 1.0) + 3.0
    while y.max() < 50:
        y = y * 2
    return y + offset


@pytest.mark.first(1)
@pytest.mark.parametrize(("kind", "offset"), [(Outer, 0.0), (Inherited, 1.0)])
def test_a_layers_call_is_converted_inside_a_function(kind, offset):
    model = kind()
    call = tf.function(model)
    for x in (np.array([1.0, 2.0], np.float32), np.array([-1.0, -2.0], np.float32), np.array([30.0], np.float32)):
        np.testing.assert_allclose(call(tf.constant(x)), chosen(x, offset))
        np.testing.assert_allclose(model(tf.constant(x)), chosen(x, offset))


def test_a_layers_call_is_converted_where_a_functional_model_takes_its_first_shape():
    class First(tf.keras.layers.Layer):  # a new class: no call of it has been converted yet
        def call(self, x):
            if tf.reduce_sum(x) > 0.0:
                x = x + 1.0
            else:
                x = x * 2.0
            return x

    inputs = tf.keras.Input((2,))
    model = tf.keras.Model(inputs, First()(inputs))
    for x, expected in ((-1.0, -2.0), (1.0, 2.0)):
        got = model.predict(np.full((4, 2), x, np.float32), verbose=0)
        np.testing.assert_allclose(got, np.full((4, 2), expected))


def test_a_layers_call_is_converted_inside_a_run():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        choosing, dense = Choosing(), tf.keras.layers.Dense(1)
        dense.build((None, 2))

    @tf.function
    def step(x):
        def replica_step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(dense(choosing(x, training=True)))
            return tape.gradient(loss, dense.trainable_variables)[0]

        return strategy.run(replica_step, args=(x,))

    (gradient,) = {str(np.asarray(one)) for one in strategy.experimental_local_results(step(tf.ones([3, 2])))}
    assert gradient == str(np.full((2, 1), 15.0, np.float32))


def test_a_layer_of_a_function_without_autograph_is_not_converted():
    layer = Choosing()
    tf.function(layer)(tf.ones([2]))
    tf.keras.config.disable_traceback_filtering()  # it cannot make JAX's error again
    try:
        with pytest.raises(jax.errors.TracerBoolConversionError, match="Attempted boolean conversion"):
            tf.function(lambda x: layer(x), autograph=False)(tf.ones([2]))
    finally:
        tf.keras.config.enable_traceback_filtering()


@pytest.mark.long
def test_windows_of_a_series_are_a_dataset_of_this_package():
    series = np.arange(10, dtype=np.float32)[:, None]
    windows = tf.keras.utils.timeseries_dataset_from_array(
        series, targets=series[3:], sequence_length=3, batch_size=4, shuffle=False
    )
    assert isinstance(windows, tf.data.Dataset)
    batches = list(windows)
    assert [x.shape for x, _ in batches] == [(4, 3, 1), (3, 3, 1)]
    np.testing.assert_array_equal(batches[0][0][1, :, 0], [1, 2, 3])
    np.testing.assert_array_equal(batches[1][1][:, 0], [7, 8, 9])
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(windows, epochs=1, verbose=0).history["loss"][0])


@pytest.mark.parametrize("kind", ["elements", "batches", "array", "arrays", "pairs"])
def test_split_dataset(kind):
    numbers = np.arange(10, dtype="float32")
    elements = tf.data.Dataset.from_tensor_slices(numbers)
    data = {
        "elements": elements,
        "batches": elements.batch(3),
        "array": numbers,
        "arrays": [numbers, 2 * numbers],
        "pairs": tf.data.Dataset.from_tensor_slices((numbers, {"double": 2 * numbers})),
    }[kind]
    left, right = tf.keras.utils.split_dataset(data, left_size=0.7)
    found = [list(part.unbatch() if kind == "batches" else part) for part in (left, right)]
    assert [len(part) for part in found] == [7, 3]
    if kind == "batches":
        assert [len(batch) for batch in left] == [3, 3, 1]
    first = [one[0] if isinstance(one, tuple) else one for part in found for one in part]
    np.testing.assert_array_equal(first, numbers)
    for one in (one for part in found for one in part if isinstance(one, tuple)):
        np.testing.assert_array_equal(jax.tree.leaves(one[1])[0], 2 * one[0])
    shuffled = tf.keras.utils.split_dataset(data, right_size=4, shuffle=True, seed=3)
    again = tf.keras.utils.split_dataset(data, right_size=4, shuffle=True, seed=3)
    for one, two in zip(shuffled, again, strict=True):
        assert [np.asarray(jax.tree.leaves(x)[0]).tolist() for x in one] == [
            np.asarray(jax.tree.leaves(x)[0]).tolist() for x in two
        ]


def test_mistakes_of_split_dataset():
    with pytest.raises(ValueError, match="at least one part"):
        tf.keras.utils.split_dataset(np.arange(4))
    with pytest.raises(ValueError, match="same number of examples"):
        tf.keras.utils.split_dataset([np.arange(4), np.arange(5)], left_size=1)
    for count, sizes in ((4, {"left_size": 9}), (4, {"left_size": 0.1}), (4, {"right_size": 4}), (1, {"left_size": 1})):
        with pytest.raises(ValueError, match=rf"left_size=.* for {count} examples?\n.*both parts must have examples"):
            tf.keras.utils.split_dataset(np.arange(count), **sizes)
    for data in ([], [1, 2], np.array(5)):
        with pytest.raises(ValueError, match=r"(no array|shapes \[\].*)\n.*the same number of examples"):
            tf.keras.utils.split_dataset(data, left_size=1)


@pytest.mark.parametrize("kind", ["dataset", "batches", "array", "arrays"])
def test_split_dataset_keeps_the_ends_of_texts(kind):
    """NumPy's arrays of bytes lose NUL characters at the ends of their items."""
    texts = [b"a\0", b"bc", b"d\0\0"]
    elements = tf.data.Dataset.from_tensor_slices(texts)
    data = {
        "dataset": elements,
        "batches": elements.batch(1),
        "array": np.array(texts, object),
        "arrays": (texts, np.arange(3)),
    }[kind]
    found = [one for part in tf.keras.utils.split_dataset(data, left_size=2) for one in part]
    assert [np.ravel(np.asarray(one[0] if kind == "arrays" else one, object))[0] for one in found] == texts


class Sampling(tf.keras.layers.Layer):
    """A layer that computes with the size of the batch, as that of a variational autoencoder."""

    def call(self, inputs):
        mean, log_variance = inputs
        batch, width = tf.shape(mean)[0], tf.shape(mean)[1]
        noise = tf.random.stateless_normal((batch, width), seed=[1, 2])
        return mean + tf.exp(0.5 * log_variance) * noise + tf.zeros([batch, 1]) / tf.cast(batch, tf.float32)


@pytest.mark.long
def test_layers_compute_with_the_size_of_the_batch():
    keras = tf.keras
    strategy = tf.distribute.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        inputs = keras.Input((4,))
        mean, log_variance = keras.layers.Dense(3)(inputs), keras.layers.Dense(3)(inputs)
        sampled = Sampling()([mean, log_variance])
        model = keras.Model(inputs, keras.layers.Dense(2)(sampled))
        model.compile("sgd", "mse")
    assert (sampled.shape, model.output_shape) == ((None, 3), (None, 2))
    x, y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert model.predict(x[:3], verbose=0).shape == (3, 2)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x: tf.reshape(x, [tf.shape(x)[0] * 3, 1]), (None, 1)),
        (lambda x: tf.concat([x, tf.zeros([tf.shape(x)[0], 2])], 1), (None, 5)),
        (lambda x: tf.ones([4, 2]) * tf.cast(tf.size(x), tf.float32), (4, 2)),
    ],
)
def test_shapes_that_a_layer_computes_from_sizes(call, shape):
    class Computing(tf.keras.layers.Layer):
        def call(self, inputs):
            return call(inputs)

    assert Computing()(tf.keras.Input((3,))).shape == shape


@pytest.mark.first(4)
@pytest.mark.parametrize("how", ["functional", "sequential", "subclassed", "nested"])
@pytest.mark.parametrize(
    "zeros",
    [
        lambda batch: tf.zeros((batch, 1)),
        lambda batch: tf.reshape(0.0 * tf.cast(tf.range(batch), tf.float32), (batch, 1)),
        lambda batch: tf.tile([[0.0]], [batch, 1]),
    ],
)
def test_the_first_use_of_a_layer_with_control_flow_and_the_size_of_the_batch(zeros, how):
    keras = tf.keras

    class Gate(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = keras.layers.Dense(4, kernel_initializer="identity")

        def call(self, x):
            state = zeros(tf.shape(x)[0])
            while tf.reduce_max(tf.abs(x)) > 2.0:
                x = x / 2.0
            for _ in range(3):
                if tf.reduce_max(x) < 1.6:
                    break
                x = x - 0.25
            return self.scale(x) + state

    class Outer(keras.Model):
        def __init__(self):
            super().__init__()
            self.gate = Gate()

        def call(self, x):
            return self.gate(x) + zeros(tf.shape(x)[0]) if tf.reduce_max(x) > 1.0 else x

    inputs = keras.Input((4,))
    if how == "subclassed":
        model = Outer()
        model(inputs)
    elif how == "sequential":
        with tf.distribute.MirroredStrategy(jax.devices()[:2]).scope():
            model = keras.Sequential([inputs, Gate()])
    else:
        model = keras.Model(inputs, (Outer() if how == "nested" else Gate())(inputs))
    np.testing.assert_allclose(model.predict(np.full((6, 4), 7.0, np.float32), verbose=0), np.full((6, 4), 1.5))


def test_a_layer_that_fits_no_size_shows_the_error_of_keras():
    class Wrong(tf.keras.layers.Layer):
        def call(self, inputs):
            return tf.reshape(inputs, [tf.shape(inputs)[0], 2])

    with pytest.raises(Exception, match="Could not automatically infer the output shape"):
        Wrong()(tf.keras.Input((3,)))
