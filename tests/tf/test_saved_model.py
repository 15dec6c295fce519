"""`tf.saved_model`: programs that run without the code that made them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import OrderedDict
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError, MissingExtraError, TapeError


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


@pytest.mark.parametrize("is_traced", [True, False])
def test_programs_of_functions_that_print(tmp_path, is_traced):
    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def double(x):
        tf.print("doubles", x if is_traced else "text")
        return 2.0 * x

    double(tf.ones([1]))
    model.double = double
    tf.saved_model.save(model, tmp_path)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path).double(tf.ones([2])), [2.0, 2.0])


def test_none_in_lists_and_dicts(tmp_path):
    """A list with a None was loaded as an empty list."""
    model = tf.Module()
    model.layers = [tf.Variable(1.0), None, [None, tf.Variable(2.0)]]
    model.named = {"a": None, "b": tf.Variable(3.0), "c": "not saved"}
    model.mixed = [tf.Variable(1.0), None, "not saved"]
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    first, second, (third, fourth) = loaded.layers
    assert (float(first), second, third, float(fourth)) == (1.0, None, None, 2.0)
    assert loaded.named["a"] is None
    assert (float(loaded.named["b"]), list(loaded.named)) == (3.0, ["a", "b"])
    assert loaded.mixed == []


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
    with pytest.raises(ArgumentError, match="arguments must match"):
        loaded.product(*(tf.ones(shape) for shape in arguments))
    with pytest.raises(ArgumentError, match="arguments must match"):
        loaded(tf.constant([1, 2]))


def test_gradients(saved):
    loaded = tf.saved_model.load(saved)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(loaded(tf.constant([1.0, 2.0]))["y"])
    (gradient,) = tape.gradient(y, loaded.trainable_variables)
    assert float(gradient) == 3.0


def test_signatures(tmp_path):
    class Scale(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x):
            return {"y": 3.0 * x}

    tf.saved_model.save(Scale(), tmp_path / "m")
    signature = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    np.testing.assert_array_equal(signature(tf.constant([4.0]))["y"], [12.0])
    assert signature.structured_input_signature[0][0].shape.as_list() == [None]


def test_no_signature_where_it_is_not_clear_which(saved):
    assert not tf.saved_model.load(saved).signatures


def test_signatures_by_name(tmp_path):
    model = Model()

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def twice(x):
        return x * 2 * model.factor

    tf.saved_model.save(model, tmp_path / "m", signatures={"twice": twice})
    loaded = tf.saved_model.load(tmp_path / "m")
    assert list(loaded.signatures) == ["twice"]
    assert float(loaded.signatures["twice"](1.0)["output_0"]) == 6.0


def test_concrete_functions_as_signatures(tmp_path):
    model = Model()
    signatures = {
        "serving_default": model.product.get_concrete_function(
            tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([None, 4], tf.float32)
        ),
        "count": model.count.get_concrete_function(by=5),
    }
    tf.saved_model.save(model, tmp_path / "m", signatures=signatures)
    loaded = tf.saved_model.load(tmp_path / "m")
    out = loaded.signatures["serving_default"](a=tf.ones([2, 3]), b=tf.ones([3, 4]))
    np.testing.assert_array_equal(out["output_0"], np.full((2, 4), 6.0))
    assert int(loaded.signatures["count"]()["output_0"]) == 5


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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_keras_model(tmp_path):
    keras = tf.keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    tf.saved_model.save(model, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(loaded(x), np.asarray(model(x, training=False)), rtol=1e-6)
    np.testing.assert_allclose(loaded.signatures["serving_default"](x[:1])["output_0"], loaded(x)[:1], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_subclassed_keras_model(tmp_path):
    class Doubling(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(3)

        def call(self, inputs):
            return 2 * self.dense(inputs)

    model, x = Doubling(), np.ones((5, 4), np.float32)
    tf.saved_model.save(model, tmp_path / "m")
    assert not tf.saved_model.load(tmp_path / "m").signatures  # nothing is known of its inputs yet
    expected = np.asarray(model(x))
    tf.saved_model.save(model, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(loaded(x[:2]), expected[:2], rtol=1e-6)
    assert [one.shape for one in loaded.trainable_variables] == [(4, 3), (3,)]


@pytest.mark.multiprocess
@pytest.mark.long
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
    class Uncalled(tf.Module):
        @tf.function
        def __call__(self, x):
            return x

    with pytest.raises(ArgumentError, match="has no tf.function with a signature"):
        tf.saved_model.save(Uncalled(), tmp_path / "m")
    with pytest.raises(ArgumentError, match="signatures must be tf.functions"):
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
    with pytest.raises(MissingExtraError, match=r"pip install 'mirrored\[export\]'"):
        tf.saved_model.save(Model(), tmp_path / "m")


@pytest.mark.long
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


def test_the_tree_of_objects(tmp_path):
    model = tf.Module()
    model.inner = tf.Module()
    model.inner.weights = [tf.Variable(1.0), tf.Variable([2.0, 3.0])]
    model.by_name = {"a": model.inner.weights[0], "self": model}
    model.text = "left out"
    tf.saved_model.save(model, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.inner.weights[1], [2.0, 3.0])
    assert loaded.by_name["a"] is loaded.inner.weights[0]
    assert loaded.by_name["self"] is loaded
    assert len(loaded.variables) == 2
    assert not hasattr(loaded, "text")


def test_nothing_but_objects(tmp_path):
    tf.saved_model.save(tf.Module(), tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    assert (loaded.variables, loaded.signatures) == ((), {})
    with pytest.raises(ArgumentError, match="the saved object had no tf.function `__call__`"):
        loaded()


class Sizes(tf.Module):
    """Functions for arrays of open sizes that JAX cannot do without knowing more."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, None], tf.uint8)])
    def rows(self, images):
        return tf.reduce_sum(tf.reshape(tf.cast(images, tf.float32), [-1, 6]), axis=1)

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None])])
    def paired(self, x, y):
        return tf.reduce_sum(x, axis=1) * y

    @tf.function(input_signature=[tf.TensorSpec([None, None])] * 2)
    def added(self, x, y):
        return x + y

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def written_out(self, x):
        return sum(x[:, column] * (column + 1) for column in range(int(x.shape[1])))

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([])])
    def any_rank(self, x, factor):
        return x * factor

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def matrices(self, x):
        return tf.matmul(x, x, transpose_b=True)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    model = Sizes()
    model.written_out(tf.ones([2, 3]))
    folder = str(tmp_path_factory.mktemp("sizes") / "model")
    tf.saved_model.save(model, folder)
    return model, tf.saved_model.load(folder)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("rows", [(4, 2, 3, 1)]),
        ("rows", [(1, 6, 2, 3)]),
        ("paired", [(5, 2), (5,)]),
        ("added", [(3, 2), (3, 2)]),
        ("written_out", [(2, 3)]),
        ("any_rank", [(), ()]),
        ("any_rank", [(3,), ()]),
        ("any_rank", [(2, 1, 2, 3), ()]),
        ("matrices", [(2, 3)]),
        ("matrices", [(4, 2, 3)]),
    ],
)
@pytest.mark.first(1)
def test_open_sizes_that_the_program_settles(sizes, name, shapes):
    model, loaded = sizes
    dtype = np.uint8 if name == "rows" else np.float32
    arrays = [np.arange(np.prod(shape)).reshape(shape).astype(dtype) + 1 for shape in shapes]
    np.testing.assert_allclose(getattr(loaded, name)(*arrays), getattr(model, name)(*arrays), rtol=1e-6)


def test_sizes_that_the_program_is_not_for(sizes):
    _, loaded = sizes
    with pytest.raises(ArgumentError, match=r"sizes d0, d1, \.\.\. satisfy mod\(d0\*d1\*d2\*d3, -6\) == 0"):
        loaded.rows(np.ones((5, 1, 1, 1), np.uint8))
    with pytest.raises(ArgumentError, match="arguments must match"):
        loaded.matrices(tf.ones([3]))


READING_THE_SIZE = {
    "tf.shape": lambda w, x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32),
    "zeros": lambda w, x: tf.zeros((tf.shape(x)[0], 1)) + x,
    "range": lambda w, x: tf.range(tf.shape(x)[0]),
    "eye": lambda w, x: tf.matmul(tf.eye(tf.shape(x)[0]), x),
    "slice": lambda w, x: x[: tf.shape(x)[0] // 2],
    "int": lambda w, x: x * int(x.shape[0]),
    "if": lambda w, x: x * 2.0 if x.shape[0] > 3 else x,
    "assignment": lambda w, x: w.assign(w * 0.0 + float(x.shape[0])) + x,
}


class ReadingTheSize(tf.Module):
    def __init__(self, body):
        super().__init__()
        self.w, self.body = tf.Variable(1.0), body

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def compute(self, x):
        return self.body(self.w, x)


@pytest.mark.first(2)
@pytest.mark.parametrize("body", READING_THE_SIZE.values(), ids=READING_THE_SIZE)
def test_a_function_that_reads_an_unknown_size_is_saved_for_the_shapes_of_its_calls(tmp_path, body):
    """It was saved for 501 rows, a number in the address of a page that an error of JAX names, without a word."""
    module, arrays = ReadingTheSize(body), [np.arange(2.0 * n, dtype=np.float32).reshape(n, 2) for n in (5, 3, 4)]
    for x in arrays[:2]:
        module.compute(x)
    with pytest.warns(UserWarning, match=r"compute is saved only for the shapes of its earlier calls") as caught:
        tf.saved_model.save(module, tmp_path / "m")
    assert len(caught) == 1
    assert "(x [5, 2]; x [3, 2])" in str(caught[0].message)
    loaded = tf.saved_model.load(tmp_path / "m")
    for x in arrays[:2]:
        np.testing.assert_allclose(loaded.compute(x), module.compute(x))
    with pytest.raises(ArgumentError, match=r"arguments must match a saved signature"):
        loaded.compute(arrays[2])


@pytest.mark.first(2)
@pytest.mark.parametrize("body", READING_THE_SIZE.values(), ids=READING_THE_SIZE)
def test_a_function_that_reads_an_unknown_size_and_was_never_called_is_refused(tmp_path, body):
    with pytest.raises(ArgumentError, match=r"compute cannot be traced for the unknown sizes of x \[None, 2\]"):
        tf.saved_model.save(ReadingTheSize(body), tmp_path / "m")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "body",
    [
        lambda w, x: tf.zeros_like(x[:, :1]) + x,
        lambda w, x: tf.reduce_sum(x) / tf.reduce_sum(tf.ones_like(x[:, 0])),
        lambda w, x: tf.reduce_mean(x, axis=0),
        lambda w, x: tf.map_fn(lambda row: row * w, x),
        lambda w, x: tf.reshape(x, [-1, 1]),
    ],
)
def test_what_the_warning_advises_is_saved_for_all_sizes(tmp_path, body, recwarn):
    module = ReadingTheSize(body)
    tf.saved_model.save(module, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    for n in (1, 4, 7):
        x = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)
        np.testing.assert_allclose(loaded.compute(x), module.compute(x), rtol=1e-6)
    assert not recwarn.list


@pytest.mark.long
def test_gradients_of_a_saved_custom_gradient(tmp_path):
    @tf.custom_gradient
    def clipped(y):
        return y, lambda upstream: tf.clip_by_norm(upstream, 0.5)

    class Clipping(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(None)])
        def __call__(self, x):
            return clipped(x)

    tf.saved_model.save(Clipping(), str(tmp_path / "model"))
    loaded, v = tf.saved_model.load(str(tmp_path / "model")), tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = loaded(v * v)
    assert float(tape.gradient(y, v)) == 2.0


class Drawing(tf.Module):
    def __init__(self):
        super().__init__()
        self.stream = tf.random.Generator.from_seed(0)

    @tf.function
    def __call__(self):
        return self.stream.normal([])

    @tf.function
    def state(self):
        return {"state": self.stream.state}


@pytest.mark.long
def test_a_generator_of_a_strategy_goes_on_and_a_variable_that_is_returned_is_read(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        module = Drawing()
        strategy.run(module)
        module.state()
        module()
        tf.saved_model.save(module, tmp_path / "m")
        expected = [float(module()) for _ in range(3)]
    loaded = tf.saved_model.load(tmp_path / "m")
    before = loaded.state()["state"].numpy().tolist()
    assert [float(loaded()) for _ in range(3)] == pytest.approx(expected)
    assert loaded.state()["state"].numpy().tolist() == [before[0], before[1], before[2] + 3]


@pytest.mark.long
def test_a_function_that_was_only_run_on_replicas_is_saved_for_what_one_replica_gets(tmp_path):
    class Scaling(tf.Module):
        @tf.function
        def __call__(self, x, factor, sign=1):
            return x * factor * sign

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    module, x = Scaling(), np.arange(6.0, dtype=np.float32).reshape(2, 3)
    shares = strategy.experimental_distribute_values_from_function(lambda context: x[context.replica_id_in_sync_group])
    for _ in range(2):
        strategy.run(module, (shares, tf.constant(2.0)), {"sign": -1})
    strategy.run(module, (tf.ones([4]), tf.constant(2.0)))
    tf.saved_model.save(module, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded(tf.constant(x[1]), tf.constant(3.0), sign=-1), x[1] * -3)
    np.testing.assert_array_equal(loaded(tf.ones([4]), tf.constant(3.0)), np.full(4, 3.0))
    with pytest.raises(ArgumentError, match="arguments must match"):
        loaded(tf.ones([2, 3]), tf.constant(3.0))


def test_only_a_saved_program_is_replaced(tmp_path):
    model = Model()
    for name in ("mine/thesis.txt", "taken/variables/thesis.txt", "c.unfinished/thesis.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("important")
    (tmp_path / "file").write_text("important")
    for _ in range(2):
        tf.saved_model.save(model, tmp_path / "mine")
        assert (tmp_path / "mine/thesis.txt").read_text() == "important"
        tf.saved_model.load(tmp_path / "mine")
    for name, found in (("file", "is a file"), ("taken", "has variables, and is not"), ("c", "has thesis.txt")):
        with pytest.raises(ArgumentError, match=found):
            tf.saved_model.save(model, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["c.unfinished", "file", "mine", "taken"]
    assert (tmp_path / "taken/variables/thesis.txt").read_text() == "important"


@pytest.mark.long
def test_a_keras_model_is_exported_with_the_endpoint_serve(tmp_path, capsys):
    keras = tf.keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    model.export(tmp_path / "exported")
    assert "Endpoint: serve" in capsys.readouterr().out
    loaded = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(loaded.serve(x), model(x), rtol=1e-6)
    assert sorted(loaded.signatures) == ["serve", "serving_default"]
    np.testing.assert_allclose(loaded.signatures["serving_default"](tf.constant(x))["output_0"], model(x), rtol=1e-6)
    model.export(tmp_path / "fixed", verbose=False, input_signature=[tf.TensorSpec((2, 4))])
    assert capsys.readouterr().out == ""
    np.testing.assert_allclose(tf.saved_model.load(tmp_path / "fixed").serve(x[:2]), model(x[:2]), rtol=1e-6)


def test_a_model_without_known_inputs_is_not_exported(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    with pytest.raises(ArgumentError, match="never called"):
        model.export(tmp_path / "exported")


@pytest.mark.long
def test_programs_for_equal_arguments_of_other_types(tmp_path):
    class Kinds(tf.Module):
        @tf.function
        def __call__(self, x, kind):
            return x + {bool: 10.0, int: 20.0, float: 30.0}[type(kind)]

    module, x = Kinds(), tf.constant(1.0)
    for kind in (True, 1, 1.0):
        module(x, kind)
    tf.saved_model.save(module, tmp_path / "kinds")
    loaded = tf.saved_model.load(tmp_path / "kinds")
    assert [float(loaded(x, kind)) for kind in (1, 1.0, True, np.float32(1))] == [21.0, 31.0, 11.0, 11.0]


@pytest.mark.long
def test_maps_over_an_open_number_of_rows(tmp_path):
    class Maps(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def rows(self, x):
            return tf.map_fn(lambda row: row * 2, x), tf.vectorized_map(tf.reduce_sum, x)

        @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 1])])
        def patches(self, x):
            return tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")

    tf.saved_model.save(Maps(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for count in (1, 3):
        doubled, sums = loaded.rows(tf.ones([count, 2]))
        assert doubled.tolist() == [[2, 2]] * count
        assert sums.tolist() == [2] * count
        assert loaded.patches(tf.ones([count, 4, 4, 1])).shape == (count, 2, 2, 4)


@pytest.mark.long
def test_a_loaded_model_is_saved_with_its_functions_signatures_and_variables(saved, tmp_path):
    first = tf.saved_model.load(saved)
    first.trainable_variables[0].assign(5.0)
    first.twice = tf.function(lambda x: 2.0 * x, input_signature=[tf.TensorSpec([None], tf.float32)])
    first.count()
    for _ in range(2):  # what was saved twice can be saved once more
        tf.saved_model.save(first, str(tmp_path / "again"))
        first = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_array_equal(first(tf.ones([4]))["y"], np.full(4, 5.0))
    np.testing.assert_array_equal(first.twice(tf.ones([4])), np.full(4, 2.0))
    np.testing.assert_array_equal(first.product(tf.ones([2, 3]), b=tf.ones([3, 4])), np.full((2, 4), 8.0))
    assert (int(first.count()), int(first.count())) == (3, 4)
    assert len(first.variables) == 2
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(first(tf.ones([4]))["y"])
    assert float(tape.gradient(y, first.trainable_variables[0])) == 4.0


@pytest.mark.long
def test_loaded_functions_are_saved_in_other_modules_and_as_signatures(saved, tmp_path):
    class Wrapper(tf.Module):
        def __init__(self, loaded):
            super().__init__()
            self.loaded, self.product = loaded, loaded.product

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def half(self, x):
            return x / 2.0

    wrapper = Wrapper(tf.saved_model.load(saved))
    tf.saved_model.save(wrapper, str(tmp_path / "w"))
    assert tf.saved_model.load(str(tmp_path / "w")).signatures["serving_default"](tf.ones([1]))["output_0"] == 0.5
    tf.saved_model.save(wrapper, str(tmp_path / "w"), signatures={"product": wrapper.product})
    loaded = tf.saved_model.load(str(tmp_path / "w"))
    wanted = np.full((2, 4), 6.0)
    np.testing.assert_array_equal(loaded.product(tf.ones([2, 3]), tf.ones([3, 4])), wanted)
    np.testing.assert_array_equal(
        loaded.signatures["product"](a=tf.ones([2, 3]), b=tf.ones([3, 4]))["output_0"], wanted
    )


def test_signatures_of_a_loaded_model_are_saved(tmp_path):
    model = tf.Module()
    model.f = tf.function(lambda x: [x, {"a": x + 1.0}], input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    for name in ("one", "two"):
        tf.saved_model.save(model, str(tmp_path / name))
        model = tf.saved_model.load(str(tmp_path / name))
    out = model.signatures["serving_default"](x=tf.ones([2]))
    np.testing.assert_array_equal(out["output_1"], [2.0, 2.0])


class Pair(NamedTuple):
    loss: object
    accuracy: object


STRUCTURES = {
    "many": lambda x: [x + float(at) for at in range(12)],
    "dicts in a list": lambda x: [{"b": x, "a": x + 1.0}, x + 2.0],
    "named tuple": lambda x: Pair(x, x + 1.0),
    "named tuple in a list": lambda x: [x, Pair(x + 1.0, x + 2.0)],
    "ordered": lambda x: OrderedDict(b=x, a=x + 1.0),
}


def values_of(result):
    if isinstance(result, dict):
        return {name: values_of(one) for name, one in result.items()}
    return [values_of(one) for one in result] if isinstance(result, (list, tuple)) else float(result)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", STRUCTURES)
def test_results_keep_their_places_in_functions_and_signatures(name, tmp_path):
    model = tf.Module()
    model.f = tf.function(STRUCTURES[name], input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    tf.saved_model.save(model, tmp_path / "a", signatures={"f": model.f})
    loaded = tf.saved_model.load(tmp_path / "a")
    tf.saved_model.save(loaded, tmp_path / "b", signatures={"f": loaded.f})
    again = tf.saved_model.load(tmp_path / "b")
    result = model.f(tf.constant(0.0))
    expected = values_of(result._asdict() if isinstance(result, Pair) else result)
    if name == "named tuple in a list":
        expected[1] = {"loss": 1.0, "accuracy": 2.0}
    assert values_of(loaded.f(tf.constant(0.0))) == values_of(again.f(tf.constant(0.0))) == expected
    if name not in ("named tuple", "ordered"):
        out = loaded.signatures["f"](x=tf.constant(0.0))
        assert values_of(again.signatures["f"](x=tf.constant(0.0))) == values_of(out)


def test_arguments_in_named_tuples_keep_their_places(tmp_path):
    model = tf.Module()
    model.f = tf.function(lambda pair: pair.loss - 2.0 * pair.accuracy)
    model.f(Pair(tf.constant(1.0), tf.constant(0.0)))
    tf.saved_model.save(model, tmp_path / "a")
    loaded = tf.saved_model.load(tmp_path / "a")
    assert float(loaded.f({"loss": tf.constant(1.0), "accuracy": tf.constant(3.0)})) == -5.0
    assert float(loaded.f({"accuracy": tf.constant(3.0), "loss": tf.constant(1.0)})) == -5.0


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_arguments_in_ordered_dicts_keep_their_places(tmp_path, names):
    model = tf.Module()
    model.f = tf.function(lambda d: d["a"] - 2.0 * d["b"])
    given = OrderedDict((name, tf.constant({"a": 1.0, "b": 3.0}[name])) for name in names)
    assert float(model.f(given)) == -5.0
    tf.saved_model.save(model, tmp_path / "a")
    assert float(tf.saved_model.load(tmp_path / "a").f(given)) == -5.0


class Defaults(tf.Module):
    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(2.0)

    @tf.function
    def __call__(self, x, training=False, scale=1.0):
        return self.factor * x * scale + (100.0 if training else 0.0)

    @tf.function
    def by_keyword(self, x, *, training=False):
        return x + (100.0 if training else 0.0)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])])
    def declared(self, x, y=3.0):
        return x + y

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def fixed(self, x, training=False):
        return x + (100.0 if training else 0.0)

    @tf.function
    def several(self, x, *more, training=False, **named):
        return x + sum(more) + (100.0 if training else 0.0) + named.get("a", 0.0)

    @tf.function
    def of_object(self, x, kind=object, scale=1.0):
        return x * scale + (kind is object)


@pytest.fixture(scope="module")
def defaults(tmp_path_factory):
    model, x = Defaults(), tf.ones([2])
    for kwargs in ({}, {"training": True}, {"training": False}, {"scale": 4.0}):
        model(x, **kwargs)
    model.by_keyword(x)
    model.by_keyword(x, training=True)
    model.several(x)
    model.several(x, x, x, training=True)
    model.several(x, x, a=5.0)
    model.of_object(x)
    model.of_object(x, scale=2.0)
    paths = [tmp_path_factory.mktemp("defaults") for _ in range(2)]
    tf.saved_model.save(model, paths[0], signatures={"fixed": model.fixed})
    tf.saved_model.save(tf.saved_model.load(paths[0]), paths[1])
    return [tf.saved_model.load(path) for path in paths]


CALLS = {  # the results of TensorFlow 2.21 for `Defaults` (but of `of_object`, which it cannot save)
    "omitted": (lambda f, x: f(x), 2.0),
    "by keyword": (lambda f, x: f(x, training=True), 102.0),
    "the default by keyword": (lambda f, x: f(x, training=False), 2.0),
    "by position": (lambda f, x: f(x, True), 102.0),
    "after an omitted one": (lambda f, x: f(x, scale=4.0), 8.0),
    "all by keyword": (lambda f, x: f(training=True, x=x), 102.0),
    "an equal number": (lambda f, x: f(x, 0, 1), 2.0),
    "keyword only": (lambda f, x: f.by_keyword(x), 1.0),
    "keyword only, passed": (lambda f, x: f.by_keyword(x, training=True), 101.0),
    "a default for a tensor": (lambda f, x: f.declared(x), 4.0),
    "a number for a tensor": (lambda f, x: f.declared(x, y=5.0), 6.0),
    "an undeclared parameter": (lambda f, x: f.fixed(x), 1.0),
    "an undeclared parameter by keyword": (lambda f, x: f.fixed(x, training=False), 1.0),
    "no more arguments": (lambda f, x: f.several(x), 1.0),
    "more arguments": (lambda f, x: f.several(x, x, x, training=True), 103.0),
    "named arguments": (lambda f, x: f.several(x, x, a=5.0), 7.0),
    "a default that no file can contain": (lambda f, x: f.of_object(x), 2.0),
    "after a default that no file can contain": (lambda f, x: f.of_object(x, scale=2.0), 3.0),
    "a signature": (lambda f, x: f.signatures["fixed"](x)["output_0"], 1.0),
    "a signature with its default": (lambda f, x: f.signatures["fixed"](x, training=False)["output_0"], 1.0),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("saved_again", [False, True])
def test_defaults_and_keywords_of_loaded_functions_are_those_of_tensorflow(defaults, name, saved_again):
    call, expected = CALLS[name]
    np.testing.assert_array_equal(call(defaults[saved_again], tf.ones([2])), [expected] * 2)


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f(x, True, 4.0),
        lambda f, x: f(x, unknown=1),
        lambda f, x: f(x, False, 1.0, 2),
        lambda f, x: f(x, x=x),
        lambda f, x: f.by_keyword(x, True),
        lambda f, x: f.fixed(x, training=True),
        lambda f, x: f(x, x),
        lambda f, x: tf.function(lambda flag: f(x, flag))(tf.constant(False)),
        lambda f, x: f.signatures["fixed"](x, training=True),
    ],
)
def test_arguments_for_which_no_program_was_saved(defaults, call):
    with pytest.raises(ArgumentError, match="arguments must match a saved signature"):
        call(defaults[0], tf.ones([2]))


def test_calls_that_pass_a_default_have_one_program(defaults):
    spec = tf.TensorSpec([2])
    assert [one.arguments() for one in defaults[0].named_call()["__call__"].programs] == [
        ((spec, False, 1.0), {}),
        ((spec, True, 1.0), {}),
        ((spec, False, 4.0), {}),
    ]
    assert defaults[0].by_keyword.structured_input_signature == ((spec,), {"training": False})
    assert defaults[0].signatures["fixed"].structured_input_signature == ((tf.TensorSpec([None]),), {})


CHECKS = {
    "assert_positive": lambda x: tf.debugging.assert_positive(x),
    "assert_equal": lambda x: tf.debugging.assert_equal(x, x),
    "assert_near": lambda x: tf.debugging.assert_near(x, x),
    "Assert": lambda x: tf.debugging.Assert(tf.reduce_all(x > 0), [x]),
    "check_numerics": lambda x: tf.debugging.check_numerics(x, "message"),
    "check_numerics of assert_all_finite": lambda x: tf.debugging.assert_all_finite(x, "message"),
    "assert_less": lambda x: tf.cond(x[0] > 0, lambda: tf.debugging.assert_less(x, 9.0) or x, lambda: x),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", CHECKS)
def test_functions_with_traced_checks_are_saved_without_them(tmp_path, name):
    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def double(x):
        CHECKS[name](x)
        return 2.0 * x

    model.double = double
    with pytest.warns(UserWarning, match=rf"omit the checks of tf\.debugging\.{name.partition(' ')[0]},") as caught:
        tf.saved_model.save(model, tmp_path)
    assert [one.filename for one in caught] == [__file__]
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path).double(tf.ones([2])), [2.0, 2.0])


def test_checks_of_shapes_are_saved_without_a_warning(tmp_path, recwarn):
    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def double(x):
        tf.debugging.assert_rank(x, 1)
        tf.debugging.assert_shapes([(x, (3,))])
        return 2.0 * x

    model.double = double
    tf.saved_model.save(model, tmp_path)
    assert not recwarn.list


def test_functions_that_call_python_are_not_saved(tmp_path):
    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def double(x):
        jax.debug.print("{}", x)
        return 2.0 * x

    model.double = double
    with pytest.raises(ArgumentError, match="calls Python while it runs"):
        tf.saved_model.save(model, tmp_path)


def _loaded_again(model, folder, **options):
    tf.saved_model.save(model, folder, **options)
    return tf.saved_model.load(folder)


def test_functions_without_a_derivative_are_saved(tmp_path):
    module = tf.Module()
    module.w = tf.Variable([0.5, 0.5])

    @tf.function(input_signature=[tf.TensorSpec([2]), tf.TensorSpec([], tf.int32)])
    def repeated(x, n):
        for _ in tf.range(n):
            x = x * module.w
        return x

    module.repeated = repeated
    module.eig = tf.function(lambda x: tf.linalg.eig(x)[0], input_signature=[tf.TensorSpec([2, 2])])
    loaded = _loaded_again(module, tmp_path / "a")
    loaded = _loaded_again(loaded, tmp_path / "b")
    assert loaded.repeated(tf.constant([8.0, 16.0]), 3).numpy().tolist() == [1.0, 2.0]
    assert loaded.eig(2 * tf.eye(2)).numpy().tolist() == [2.0, 2.0]
    with tf.GradientTape() as tape:
        y = loaded.repeated(tf.constant([8.0, 16.0]), 3)
    with pytest.raises(TapeError, match="a loaded function that was saved without its derivative"):
        tape.gradient(y, loaded.w)


@pytest.mark.parametrize("dtype", [tf.int64, tf.float64], ids=["int64", "float64"])
def test_arguments_of_64_bits_without_x64(tmp_path, dtype):
    module = tf.Module()
    signature = [tf.TensorSpec([None], dtype)]
    module.twice = tf.function(lambda x: tf.cast(x, tf.float32) * 2.0, input_signature=signature)
    loaded = _loaded_again(module, tmp_path / "a", signatures=module.twice)
    for x in (tf.constant([1, 2], dtype), np.array([1, 2], dtype.as_numpy_dtype), [1, 2]):
        assert loaded.twice(x).numpy().tolist() == module.twice(x).numpy().tolist() == [2.0, 4.0]
    assert loaded.signatures["serving_default"](tf.constant([3], dtype))["output_0"].numpy().tolist() == [6.0]
    assert loaded.twice.structured_input_signature == ((tf.TensorSpec([None], dtype),), {})


def test_names_of_signatures_may_have_slashes(tmp_path):
    module = tf.Module()
    module.f = tf.function(lambda x: {"y": x + 1.0}, input_signature=[tf.TensorSpec([])])
    loaded = _loaded_again(module, tmp_path / "a", signatures={"x/y": module.f, "x%2Fy": module.f})
    assert [float(loaded.signatures[name](1.0)["y"]) for name in ("x/y", "x%2Fy")] == [2.0, 2.0]


def test_functions_of_modules_inside_are_reached_as_attributes_of_the_saved_object(tmp_path):
    root = tf.Module()
    root.encoder = Model()
    loaded = _loaded_again(root, tmp_path / "a")
    with pytest.raises(ArgumentError, match="has not saved its functions"):
        loaded.encoder(tf.constant([1.0]))
    root.encode = root.encoder.__call__
    loaded = _loaded_again(root, tmp_path / "a")
    assert loaded.encode(tf.constant([1.0, 2.0]))["y"].numpy().tolist() == [3.0, 6.0]
    loaded.encoder.factor.assign(5.0)
    assert loaded.encode(tf.constant([1.0, 2.0]))["y"].numpy().tolist() == [5.0, 10.0]
