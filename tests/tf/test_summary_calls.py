"""`tf.summary` in compiled functions."""

from __future__ import annotations

import gc
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError, ContextError
from mirrored.tf._io import summary_calls

from .test_summary import values_in

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboardX.*")


@pytest.fixture
def writer(tmp_path):
    made = tf.summary.create_file_writer(tmp_path)
    yield made
    made.close()


def scalars(writer, folder):
    writer.flush()
    return {tag: [(at, one.simple_value) for at, one in found] for tag, found in values_in(folder).items()}


@pytest.mark.parametrize("compile", [tf.function, lambda f: f], ids=["compiled", "eager"])
def test_each_execution_writes(tmp_path, writer, compile):
    variable = tf.Variable(0.0)

    @compile
    def step(i: Any) -> Any:
        variable.assign_add(1.0)
        return tf.summary.scalar("v", variable, step=i)

    with writer.as_default():
        written = [bool(step(tf.constant(i))) for i in range(3)]
    assert written == [True] * 3
    assert scalars(writer, tmp_path) == {"v": [(0, 1.0), (1, 2.0), (2, 3.0)]}


@pytest.mark.parametrize("where", ["argument", "set_step", "as_default", "variable", "variable in set_step"])
def test_the_step_is_that_of_the_execution(tmp_path, writer, where):
    counter = tf.Variable(5, dtype=tf.int32)

    @tf.function
    def step(i: Any) -> None:
        counter.assign_add(1)
        at = {"argument": i, "variable": counter}.get(where)
        tf.summary.scalar("loss", 1.0, step=at)

    try:
        with writer.as_default(step=7 if where == "as_default" else None):
            if "set_step" in where:
                tf.summary.experimental.set_step(counter if "variable" in where else 7)
            for i in range(2):
                step(tf.constant(i))
    finally:
        tf.summary.experimental.set_step(None)
    expected = [0, 1] if where == "argument" else [6, 7] if "variable" in where else [7, 7]
    assert scalars(writer, tmp_path) == {"loss": [(at, 1.0) for at in expected]}


@pytest.mark.parametrize("kind", ["tensor", "function", "variable", "false"])
def test_the_condition_of_record_if(tmp_path, writer, kind):
    counter, is_on = tf.Variable(0, dtype=tf.int32), tf.Variable(True)

    @tf.function
    def step(i: Any) -> tuple[Any, Any]:
        counter.assign_add(1)
        is_on.assign(i % 2 == 0)
        condition = {
            "tensor": i % 2 == 0,
            "function": lambda: tf.equal(counter % 2, 1),
            "variable": is_on,
            "false": False,
        }
        with tf.summary.record_if(condition[kind]):
            return tf.summary.scalar("loss", 1.0, step=i), tf.summary.should_record_summaries()

    with writer.as_default():
        results = [step(tf.constant(i)) for i in range(4)]
    expected = [kind != "false" and i % 2 == 0 for i in range(4)]
    assert [(bool(one), bool(other)) for one, other in results] == [(one, one) for one in expected]
    assert [at for at, _ in scalars(writer, tmp_path).get("loss", [])] == [i for i in range(4) if expected[i]]


def test_a_condition_that_does_not_change_holds_in_a_loop_with_gradient(tmp_path, writer):
    """JAX omits calls of the host in a branch of such a loop."""

    @tf.function
    def run(x: Any, is_on: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * 1.0
            for i in tf.range(2):
                y = y * x
                with tf.summary.record_if(is_on):
                    tf.summary.scalar("y", y, step=i)
        return tape.gradient(y, x)

    with writer.as_default():
        for is_on in (True, False):
            assert run(tf.constant(2.0), tf.constant(is_on)) == 12.0
    assert scalars(writer, tmp_path) == {"y": [(0, 4.0), (1, 8.0)]}


def test_values_of_one_execution_are_written_in_program_order(tmp_path, writer):
    @tf.function
    def steps(x: Any, first: Any) -> Any:
        for i in range(6):
            tf.summary.scalar("loss", x + i, step=first + i)
            x = tf.reduce_sum(tf.ones([200, 200]) @ tf.ones([200, 200])) * 0 + x if i % 2 else x
        return x

    with writer.as_default():
        for call in range(3):
            steps(tf.constant(0.0), tf.constant(6 * call))
    assert scalars(writer, tmp_path) == {"loss": [(i, float(i % 6)) for i in range(18)]}


def test_loops_and_branches_write_what_they_execute(tmp_path, writer):
    weight = tf.Variable(2.0)

    @tf.function
    def run(count: Any) -> Any:
        with tf.GradientTape() as tape:
            y = weight * 1.0
            for i in tf.range(count):
                if i > 0:
                    tf.summary.scalar("positive", y, step=i)
                tf.summary.scalar("all", y, step=i)
            for i in tf.range(2):
                y = y * weight
                tf.summary.scalar("taped", y, step=i)
        tf.cond(y > 100, lambda: tf.summary.scalar("large", y, step=0), lambda: tf.summary.scalar("small", y, step=0))
        return tape.gradient(y, weight)

    with writer.as_default():
        assert run(tf.constant(3)) == 12.0
    assert scalars(writer, tmp_path) == {
        "positive": [(1, 2.0), (2, 2.0)],
        "all": [(0, 2.0), (1, 2.0), (2, 2.0)],
        "taped": [(0, 4.0), (1, 8.0)],
        "small": [(0, 8.0)],
    }


@pytest.mark.first(8)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("compile", [tf.function, lambda f: f], ids=["compiled", "eager"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (1, 2), (2, 2), (2, 3)])
def test_replica_0_writes(tmp_path, writer, compile, devices, replicas, deterministic):
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], num_replicas=replicas, deterministic=deterministic
    )

    def replica(x: Any, at: Any) -> Any:
        index = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        written = tf.summary.scalar("id", index + x, step=at)
        for i in tf.range(2):
            if x > 0:
                tf.summary.scalar("loop", index + tf.cast(i, tf.float32), step=i)
        with writer.as_default():
            tf.summary.scalar("last", index, step=at)
        return tf.cast(written, tf.int32)

    @compile
    def step(x: Any, at: Any) -> Any:
        written = strategy.run(replica, args=(x, at))
        tf.summary.scalar("outside", x, step=at)
        return strategy.reduce("SUM", written, axis=None)

    with writer.as_default():
        assert [int(step(tf.constant(1.0), tf.constant(at))) for at in range(2)] == [1, 1]
    assert scalars(writer, tmp_path) == {
        "id": [(0, 1.0), (1, 1.0)],
        "loop": [(0, 0.0), (1, 1.0)] * 2,
        "last": [(0, 0.0), (1, 0.0)],
        "outside": [(0, 1.0), (1, 1.0)],
    }


@pytest.mark.parametrize("compile", [tf.function, lambda f: f], ids=["compiled", "eager"])
def test_all_kinds(tmp_path, writer, compile):
    array = np.array([1.0, 2.0])

    @compile
    def step(x: Any) -> None:
        tf.summary.histogram("weights", x, step=1)
        tf.summary.histogram("array", array, step=1)
        tf.summary.image("digits", tf.ones([5, 4, 6, 3]) * x[0], step=1, max_outputs=2)
        tf.summary.text("note", tf.constant(["one", "two"]), step=1)
        tf.summary.write("tensor", x, step=1)

    with writer.as_default():
        step(tf.range(10.0))
        array[:] = 9.0
        step(tf.range(10.0))
    writer.flush()
    found = values_in(tmp_path)
    assert [one.histo.num for _, one in found["weights"]] == [10, 10]
    assert found["array"][0][1].histo.max == 2.0
    assert "digits/1" in found
    assert "digits/2" not in found
    assert [len(found[tag]) for tag in ("digits/0", "note/text_summary")] == [2, 2]
    assert np.array_equal(np.frombuffer(found["tensor"][0][1].tensor.tensor_content, np.float32), np.arange(10))


def test_the_writer_is_that_of_tracing(tmp_path, writer):
    @tf.function
    def inside(x: Any) -> Any:
        with writer.as_default(step=3):
            tf.summary.scalar("inside", x)
        return x

    @tf.function
    def without(x: Any) -> Any:
        return tf.summary.scalar("without", x, step=0)

    assert not without(tf.constant(1.0))
    inside(tf.constant(1.0))
    jax.effects_barrier()
    assert [at for at, _ in values_in(tmp_path)["inside"]] == [3]  # the end of the block has written it
    with writer.as_default():
        assert not without(tf.constant(1.0))
    assert scalars(writer, tmp_path) == {"inside": [(3, 1.0)]}


@pytest.mark.parametrize("transform", ["grad", "checkpoint", "vmap"])
def test_transforms_write(tmp_path, writer, transform):
    def f(x: Any) -> Any:
        for i in range(2):
            tf.summary.scalar("x", x, step=i)
        return x * x

    calls = {
        "grad": lambda x: jax.grad(f)(x[0]),
        "checkpoint": lambda x: jax.grad(jax.checkpoint(f))(x[0]),
        "vmap": jax.vmap(f),
    }
    with writer.as_default():
        jax.jit(calls[transform])(jnp.arange(3.0))
    found = [at for at, _ in scalars(writer, tmp_path)["x"]]
    assert sorted(set(found)) == [0, 1]
    assert len(found) == {"grad": 2, "checkpoint": 4, "vmap": 6}[transform]


def test_layers_write_in_fit(tmp_path, writer):
    class Layer(tf.keras.layers.Layer):
        def call(self, x: Any) -> Any:
            tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
            return x

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones"), Layer()])
        model.compile("sgd", "mse")
    with writer.as_default():
        model.fit(np.ones([16, 4]), np.full([16, 1], 4.0), batch_size=8, epochs=2, verbose=0)
    assert scalars(writer, tmp_path) == {"mean": [(0, 4.0)] * 4}


def test_misuse_is_refused_while_tracing(writer):
    with writer.as_default():
        with pytest.raises(ArgumentError, match="no step was passed"):
            tf.function(lambda x: tf.summary.scalar("x", x))(tf.constant(1.0))
        with pytest.raises(ArgumentError, match="one number"):
            tf.function(lambda x: tf.summary.scalar("x", x, step=0))(tf.ones([2]))
        with pytest.raises(ArgumentError, match="height, width"):
            tf.function(lambda x: tf.summary.image("x", x, step=0))(tf.ones([2, 3, 3]))
        with pytest.raises(ArgumentError, match="dtype uint32"):
            tf.function(lambda x: tf.summary.write("x", x, step=0))(tf.ones([2], tf.uint32))
    with pytest.raises(ContextError, match="close it outside"):
        tf.function(lambda x: writer.close() or x)(tf.constant(1.0))


def test_a_closed_writer_is_logged(writer, caplog):
    step = tf.function(lambda x: tf.summary.scalar("x", x, step=0))
    with writer.as_default():
        step(tf.constant(1.0))
        writer.close()
        with caplog.at_level(logging.ERROR, "mirrored"):
            step(tf.constant(1.0))
            jax.effects_barrier()
    assert "tf.summary.scalar failed in compiled code" in caplog.text
    assert "a writer that is closed" in caplog.text


def test_saved_programs_omit_summaries(tmp_path, writer):
    module = tf.Module()
    module.call = tf.function(
        lambda x: (tf.summary.scalar("x", x, step=0), x + 1)[1], input_signature=[tf.TensorSpec([], tf.float32)]
    )
    with writer.as_default():
        tf.saved_model.save(module, str(tmp_path / "saved"))
    assert tf.saved_model.load(str(tmp_path / "saved")).call(tf.constant(1.0)) == 2.0
    assert scalars(writer, tmp_path) == {}


def test_traces_are_not_kept(writer):
    with writer.as_default():
        tf.function(lambda x: tf.summary.scalar("x", x, step=0))(tf.constant(1.0))
    gc.collect()
    assert len(summary_calls._orders) == 0
