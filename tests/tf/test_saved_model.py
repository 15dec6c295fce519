"""`tf.saved_model`: programs that run without the code that made them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError, MissingExtraError


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(3.0, name="factor")
        self.calls = tf.Variable(0, trainable=False, name="calls")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        return {"y": self.factor * x, "rest": (tf.reduce_sum(x), None)}

    @tf.function
    def count(self, by=1):
        self.calls.assign_add(by)
        return self.calls.read_value()

    @tf.function
    def product(self, a, b):
        return a @ b + self.factor


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = Model()
    model.count()
    model.product(tf.ones([2, 3]), b=tf.ones([3, 4]))
    path = str(tmp_path_factory.mktemp("saved") / "model")
    tf.saved_model.save(model, path)
    return path


def test_any_size_of_an_unknown_dimension(saved):
    loaded = tf.saved_model.load(saved)
    for size in (1, 2, 5):
        out = loaded(tf.ones([size]))
        np.testing.assert_array_equal(out["y"], np.full(size, 3.0))
        assert float(out["rest"][0]) == size
        assert out["rest"][1] is None
    np.testing.assert_array_equal(loaded([1.0, 2.0])["y"], [3.0, 6.0])


def test_variables_are_state(saved):
    loaded = tf.saved_model.load(saved)
    assert int(loaded.count()) == 2
    assert int(loaded.count()) == 3
    assert {variable.name.removesuffix(":0") for variable in loaded.variables} == {"factor", "calls"}
    assert len(loaded.trainable_variables) == 1
    loaded.trainable_variables[0].assign(10.0)
    np.testing.assert_array_equal(loaded(tf.ones([1]))["y"], [10.0])


def test_positional_and_keyword_arguments(saved):
    product = tf.saved_model.load(saved).product
    a, b = tf.ones([2, 3]), tf.ones([3, 4])
    np.testing.assert_array_equal(product(a, b), np.full((2, 4), 6.0))
    np.testing.assert_array_equal(product(a, b=b), np.full((2, 4), 6.0))
    np.testing.assert_array_equal(product(b=b, a=a), np.full((2, 4), 6.0))


@pytest.mark.parametrize("arguments", [((2, 2), (3, 4)), ((2, 3),), ((2, 3), (3, 4), (1,))])
def test_arguments_that_do_not_fit(saved, arguments):
    loaded = tf.saved_model.load(saved)
    with pytest.raises(ArgumentError, match="it was saved for"):
        loaded.product(*(tf.ones(shape) for shape in arguments))
    with pytest.raises(ArgumentError, match="it was saved for"):
        loaded(tf.constant([1, 2]))


def test_gradients(saved):
    loaded = tf.saved_model.load(saved)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(loaded(tf.constant([1.0, 2.0]))["y"])
    (gradient,) = tape.gradient(y, loaded.trainable_variables)
    assert float(gradient) == 3.0


def test_signatures(saved):
    signature = tf.saved_model.load(saved).signatures["serving_default"]
    np.testing.assert_array_equal(signature(tf.constant([4.0]))["y"], [12.0])
    assert signature.structured_input_signature[0][0].shape.as_list() == [None]


def test_signatures_by_name(tmp_path):
    model = Model()

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def twice(x):
        return x * 2 * model.factor

    tf.saved_model.save(model, tmp_path / "m", signatures={"twice": twice})
    loaded = tf.saved_model.load(tmp_path / "m")
    assert list(loaded.signatures) == ["twice"]
    assert float(loaded.signatures["twice"](1.0)) == 6.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_on_replicas(saved, replicas):
    strategy = tf.distribute.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        loaded = tf.saved_model.load(saved)
    assert loaded.trainable_variables[0].strategy is strategy
    out = tf.function(lambda: strategy.run(lambda: loaded(tf.constant([2.0]))["y"]))()
    for one in strategy.experimental_local_results(out):
        np.testing.assert_array_equal(one, [6.0])


def test_of_a_mirrored_model(tmp_path):
    with tf.distribute.MirroredStrategy(jax.devices()[:2]).scope():
        model = Model()
    tf.saved_model.save(model, tmp_path / "m")
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m")(tf.constant([2.0]))["y"], [6.0])


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_keras_model(tmp_path):
    keras = tf.keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    tf.saved_model.save(model, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(loaded(x), np.asarray(model(x, training=False)), rtol=1e-6)
    np.testing.assert_allclose(loaded.signatures["serving_default"](x[:1]), loaded(x)[:1], rtol=1e-6)


@pytest.mark.multiprocess
def test_without_the_models_code(saved):
    program = """
        import sys
        import mirrored.tf as tf
        loaded = tf.saved_model.load(sys.argv[1])
        print(loaded(tf.constant([1.0, 2.0]))["y"].numpy().tolist())
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program), saved]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "[3.0, 6.0]", done.stderr


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ArgumentError, match="has no tf.function with a signature"):
        tf.saved_model.save(tf.Module(), tmp_path / "m")
    with pytest.raises(ArgumentError, match="signatures are tf.functions"):
        tf.saved_model.save(Model(), tmp_path / "m", signatures={"f": len})
    assert not tf.saved_model.contains_saved_model(tmp_path / "m")


def test_what_cannot_be_loaded(tmp_path, saved):
    assert tf.saved_model.contains_saved_model(saved)
    with pytest.raises(tf.errors.NotFoundError, match=r"has no saved_model\.json"):
        tf.saved_model.load(tmp_path)


def test_saving_again_replaces(tmp_path):
    model = Model()
    for value in (1.0, 2.0):
        model.factor.assign(value)
        tf.saved_model.save(model, tmp_path / "m")
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m")(tf.ones([1]))["y"], [2.0])
    assert os.listdir(tmp_path) == ["m"]


def test_without_flatbuffers(tmp_path, monkeypatch):
    def refuse(self, vjp_order=0):
        raise ImportError("Please install 'flatbuffers'")

    monkeypatch.setattr(jax.export.Exported, "serialize", refuse)
    with pytest.raises(MissingExtraError, match="pip install flatbuffers"):
        tf.saved_model.save(Model(), tmp_path / "m")


def test_an_open_size_that_the_weights_settle(tmp_path):
    class Normalised(tf.Module):
        def __init__(self):
            self.mean = tf.Variable([1.0, 2.0, 3.0])

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32)])
        def __call__(self, x):
            return x - self.mean

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32)])
        def padded(self, x):
            return tf.concat([x, x[:, :1]], 1) - self.mean

    model, folder = Normalised(), str(tmp_path / "model")
    tf.saved_model.save(model, folder)
    loaded = tf.saved_model.load(folder)
    for rows in (1, 4):
        x = tf.ones([rows, 2])
        np.testing.assert_allclose(loaded.padded(x), model.padded(x))


def test_control_flow_over_tensors_is_saved(tmp_path):
    class Absolute(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def __call__(self, x):
            if x > 0:
                return x
            return -x

    tf.saved_model.save(Absolute(), str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert [float(loaded(tf.constant(one))) for one in (2.0, -3.0)] == [2.0, 3.0]
