"""`tf.summary` and `tf.profiler`: what is in the files."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import ArgumentError, ContextError, MissingExtraError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboardX.*")


def values_in(directory):
    """``{tag: [(step, value)]}`` of all event files."""
    found = {}
    for file in sorted(directory.glob("events*")):
        for record in mr.data.TFRecordDataset(str(file)):
            event = Event.FromString(bytes(record) if isinstance(record, bytes) else record.item())
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value))
    return found


def test_scalars(tmp_path):
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default():
        for step in range(3):
            assert tf.summary.scalar("loss", jnp.float32(step) / 2, step=step)
    with writer.as_default(step=tf.Variable(7)):
        tf.summary.scalar("accuracy", 0.25)
    writer.close()
    found = values_in(tmp_path)
    assert [(step, value.simple_value) for step, value in found["loss"]] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert [(step, value.simple_value) for step, value in found["accuracy"]] == [(7, 0.25)]


def test_writers_of_one_folder_keep_the_values_of_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1e9)  # in the same second
    for step in range(2):
        writer = tf.summary.create_file_writer(tmp_path, filename_suffix=".own")
        with writer.as_default():
            tf.summary.scalar("loss", 1.0, step=step)
        writer.close()
    assert [step for step, _ in values_in(tmp_path)["loss"]] == [0, 1]
    assert len(list(tmp_path.glob("*.own"))) == 2


def test_a_closed_writer_takes_no_values(tmp_path):
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default():
        tf.summary.scalar("loss", 1.0, step=0)
        writer.close()
        with pytest.raises(ContextError, match="a writer that is closed"):
            tf.summary.scalar("loss", 1.0, step=1)
    writer.close()
    assert [step for step, _ in values_in(tmp_path)["loss"]] == [0]


def test_pictures_histograms_and_texts(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        assert tf.summary.image("digits", np.zeros((5, 4, 6, 3)), step=1, max_outputs=2)
        assert tf.summary.image("one", np.zeros((5, 4, 6, 1), np.uint8), step=1, max_outputs=1)
        assert tf.summary.histogram("weights", jnp.arange(10.0), step=1)
        assert tf.summary.text("note", "hello", step=1)
        assert tf.summary.text("notes", tf.constant(["one", "two"]), step=1)
    writer.flush()
    writer.close()
    found = values_in(tmp_path)
    assert {"digits/0", "digits/1", "one", "weights"} <= set(found)
    assert (found["digits/0"][0][1].image.height, found["digits/0"][0][1].image.width) == (4, 6)
    assert found["weights"][0][1].histo.num == 10
    assert any(tag.startswith("note") for tag in found)


def test_flush_writes_all_pending_values(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    for round in range(3):
        with writer.as_default():
            for step in range(40):
                tf.summary.scalar("loss", float(step), step=40 * round + step)
        tf.summary.flush(writer)
        assert len(values_in(tmp_path)["loss"]) == 40 * (round + 1)
    writer.close()
    writer.flush()  # has no effect after close


def test_the_end_of_the_block_writes_pending_values(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        tf.summary.scalar("loss", 1.0, step=1)
    assert len(values_in(tmp_path)["loss"]) == 1
    writer.close()


def test_flush_ends_if_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("mirrored.tf._io.summary._MOST_SECONDS", 0.05)
    writer = tf.summary.create_file_writer(str(tmp_path))
    files = next(iter(writer.events.all_writers.values())).event_writer

    def write():
        with writer.as_default():
            tf.summary.scalar("loss", 1.0, step=1)

    with files._ev_writer._lock, pytest.raises(TimeoutError, match="within 0 s"):
        write()
    monkeypatch.undo()
    writer.flush()
    assert len(values_in(tmp_path)["loss"]) == 1
    writer.close()


def test_nothing_is_written_without_a_writer(tmp_path):
    assert tf.summary.scalar("loss", 1.0, step=0) is False
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default(), tf.summary.create_noop_writer():
        assert tf.summary.scalar("loss", 1.0, step=0) is False
    with writer.as_default(), tf.summary.record_if(lambda: False):
        assert not tf.summary.should_record_summaries()
        assert tf.summary.scalar("loss", 1.0, step=0) is False
    writer.close()
    assert values_in(tmp_path) == {}


def test_step(tmp_path):
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default():
        with pytest.raises(ArgumentError, match="no step was passed"):
            tf.summary.scalar("loss", 1.0)
        tf.summary.experimental.set_step(5)
        assert tf.summary.experimental.get_step() == 5
        tf.summary.scalar("loss", 1.0)
    tf.summary.experimental.set_step(None)
    writer.close()
    assert [step for step, _ in values_in(tmp_path)["loss"]] == [5]


def test_only_replica_zero_writes(tmp_path):
    strategy = tf.distribute.MirroredStrategy(jax.devices()[:2])
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default(step=1):
        written = strategy.run(lambda: tf.summary.scalar("loss", 2.0))
    writer.close()
    assert strategy.experimental_local_results(written) == (True, False)
    assert len(values_in(tmp_path)["loss"]) == 1


def test_without_tensorboardx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"tensorboardX(.|\n)*pip install 'mirrored\[summary\]'"):
        tf.summary.create_file_writer(tmp_path)


def test_profile(tmp_path):
    with tf.profiler.experimental.Profile(tmp_path):
        for step in range(2):
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                jnp.ones(3).block_until_ready()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_profiles_do_not_overlap(tmp_path):
    tf.profiler.experimental.start(tmp_path, options=tf.profiler.experimental.ProfilerOptions(host_tracer_level=3))
    try:
        with pytest.raises(ContextError, match="only one trace can be active at a time"):
            tf.profiler.experimental.start(tmp_path)
    finally:
        tf.profiler.experimental.stop()
    with pytest.raises(ContextError, match=r"tf\.profiler\.experimental\.stop"):
        tf.profiler.experimental.stop()


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
def test_tensors(tmp_path, dtype):
    writer = tf.summary.create_file_writer(tmp_path)
    tensor = tf.cast(tf.constant([[1, 0, 3]]), dtype)
    with writer.as_default(step=4):
        assert tf.summary.write("weights", tensor) is True
    writer.close()
    [(step, value)] = values_in(tmp_path)["weights"]
    assert step == 4
    kind = value.tensor.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number[value.tensor.dtype].name
    assert kind == {"float32": "DT_FLOAT", "int32": "DT_INT32", "bool": "DT_BOOL", "bfloat16": "DT_BFLOAT16"}[dtype]
    shape = [dim.size for dim in value.tensor.tensor_shape.dim]
    read = np.frombuffer(value.tensor.tensor_content, np.dtype(tensor.dtype)).reshape(shape)
    assert np.array_equal(read, tensor)


def test_tensors_of_texts_and_of_the_other_byte_order(tmp_path):
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default(step=0):
        tf.summary.write("texts", [b"a\0", "b"])
        tf.summary.write("numbers", np.array([1, 2], ">i4"))
        with pytest.raises(ArgumentError, match="a tensor of dtype uint32"):
            tf.summary.write("unsigned", np.array([1], np.uint32))
    writer.close()
    found = values_in(tmp_path)
    assert list(found["texts"][0][1].tensor.string_val) == [b"a\0", b"b"]
    assert np.frombuffer(found["numbers"][0][1].tensor.tensor_content, np.int32).tolist() == [1, 2]


def test_only_the_first_replica_writes_tensors(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    writer = tf.summary.create_file_writer(tmp_path)

    def replica():
        with writer.as_default(step=0):
            return tf.summary.write("id", tf.distribute.get_replica_context().replica_id_in_sync_group)

    assert strategy.experimental_local_results(strategy.run(replica)) == (True, False)
    writer.close()
    assert len(values_in(tmp_path)["id"]) == 1


def test_a_trace_of_summaries_is_begun_and_exported(tmp_path):
    with pytest.raises(ContextError, match=r"call tf.summary.trace_on\(\) first"):
        tf.summary.trace_export("batch_1", step=1)
    with pytest.raises(ContextError, match="profiler_outdir"):
        tf.summary.trace_on(profiler=True)
    tf.summary.trace_on(graph=True)
    tf.summary.trace_on()  # has no effect, as in TensorFlow
    tf.summary.trace_export("batch_1", step=1)
    tf.summary.trace_off()  # no trace is active
    tf.summary.trace_on(profiler=True, profiler_outdir=tmp_path)
    tf.reduce_sum(tf.ones([2]))
    tf.summary.trace_export("batch_2", step=2)
    assert list(tmp_path.rglob("*.xplane.pb"))
