"""`tf.train` and `tf.distribute.cluster_resolver`: TensorFlow's words for checkpoints and clusters."""

from __future__ import annotations

import gc
import os
import signal

import jax
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.checkpoint import preemption


@pytest.fixture
def v():
    return tf.Variable([1.0, 2.0])


def test_save_and_restore(tmp_path, v):
    checkpoint = tf.train.Checkpoint(v=v)
    path = checkpoint.save(os.path.join(tmp_path, "c"))
    assert path == os.path.join(tmp_path, "c-1")
    assert tf.train.latest_checkpoint(tmp_path) == path
    v.assign([7.0, 8.0])
    checkpoint.restore(path).assert_consumed()
    assert v.numpy().tolist() == [1.0, 2.0]
    assert int(checkpoint.save_counter.numpy()) == 1


def test_restoring_the_latest_of_nothing(tmp_path, v):
    tf.train.Checkpoint(v=v).restore(tf.train.latest_checkpoint(tmp_path)).expect_partial()
    assert v.numpy().tolist() == [1.0, 2.0]


def test_missing_checkpoint_is_not_found(tmp_path, v):
    checkpoint = tf.train.Checkpoint(v=v)
    for read in (checkpoint.restore, checkpoint.read, tf.train.load_checkpoint):
        with pytest.raises(tf.errors.NotFoundError, match="nothing-1 does not exist"):
            read(os.path.join(tmp_path, "nothing-1"))


def test_asynchronous_save(tmp_path, v):
    checkpoint = tf.train.Checkpoint(v=v)
    path = checkpoint.write(os.path.join(tmp_path, "c"), options=tf.train.CheckpointOptions(enable_async=True))
    v.assign([0.0, 0.0])
    checkpoint.sync()
    assert tf.train.load_variable(path, "v").tolist() == [1.0, 2.0]


def test_manager_keeps_the_newest(tmp_path, v):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=v), tmp_path, max_to_keep=2)
    for k in range(4):
        v.assign([float(k), 0.0])
        manager.save()
    assert [os.path.basename(path) for path in manager.checkpoints] == ["ckpt-3", "ckpt-4"]
    assert manager.latest_checkpoint == os.path.join(tmp_path, "ckpt-4")
    v.assign([-1.0, -1.0])
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    assert v.numpy().tolist() == [3.0, 0.0]
    state = tf.train.get_checkpoint_state(tmp_path)
    assert state.model_checkpoint_path == manager.latest_checkpoint
    assert state.all_model_checkpoint_paths == manager.checkpoints
    assert os.path.basename(manager.save(checkpoint_number=tf.Variable(100))) == "ckpt-100"


def test_manager_initializes(tmp_path, v):
    called = []
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=v), tmp_path, 1, init_fn=lambda: called.append(1))
    assert manager.restore_or_initialize() is None
    assert called == [1]


def test_manager_with_an_interval(tmp_path, v):
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(v=v, step=step), tmp_path, None, step_counter=step, checkpoint_interval=2
    )
    saved = []
    for _ in range(5):
        saved.append(manager.save() is not None)
        step.assign_add(1)
    assert saved == [True, False, True, False, True]
    assert manager.save(check_interval=False) is not None
    with pytest.raises(ValueError, match="step_counter"):
        tf.train.CheckpointManager(tf.train.Checkpoint(v=v), tmp_path, 1, checkpoint_interval=2)


def test_looking_into_a_checkpoint(tmp_path, v):
    path = tf.train.Checkpoint(net=tf.train.Checkpoint(v=v)).write(os.path.join(tmp_path, "c"))
    name = "net/v/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.list_variables(path) == [(name, [2])]
    reader = tf.train.load_checkpoint(tmp_path)
    assert reader.get_variable_to_shape_map() == {name: [2]}
    assert reader.get_variable_to_dtype_map() == {name: tf.float32}
    assert reader.has_tensor(name)
    assert not reader.has_tensor("other")
    np.testing.assert_array_equal(reader.get_tensor("net/v"), [1.0, 2.0])
    with pytest.raises(ValueError, match="no name 'other'"):
        reader.get_tensor("other")


def test_dtypes_of_a_checkpoint_with_keys_and_low_precision(tmp_path):
    key, half = jax.random.key(0), tf.Variable(1.0, dtype=tf.bfloat16)
    path = tf.train.Checkpoint(key=key, keys=tf.Variable(jax.random.split(key, 2)), half=half).write(tmp_path / "c")
    dtypes = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
    assert {name.partition("/")[0]: dtype for name, dtype in dtypes.items()} == {
        "key": tf.uint32,
        "keys": tf.uint32,
        "half": tf.bfloat16,
    }


def test_checkpoints_iterator(tmp_path, v):
    checkpoint = tf.train.Checkpoint(v=v)
    checkpoint.save(os.path.join(tmp_path, "c"))
    found = []
    for path in tf.train.checkpoints_iterator(tmp_path, timeout=0.1):
        found.append(os.path.basename(path))
        if len(found) < 3:
            checkpoint.save(os.path.join(tmp_path, "c"))
    assert found == ["c-1", "c-2", "c-3"]


@pytest.mark.parametrize("replicas", [1, 3])
def test_across_replica_counts(tmp_path, replicas):
    def make(count):
        with tf.distribute.MirroredStrategy(jax.devices()[:count]).scope():
            return tf.Variable(float(count)), tf.Variable(
                float(count), synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
            )

    mirrored, total = make(2)
    path = tf.train.Checkpoint(mirrored=mirrored, total=total).save(os.path.join(tmp_path, "c"))
    before = total.numpy()
    other, sum_ = make(replicas)
    tf.train.Checkpoint(mirrored=other, total=sum_).restore(path).assert_consumed()
    assert other.numpy() == 2.0
    np.testing.assert_allclose(sum_.numpy(), before, rtol=1e-6)


def test_delayed_restoration(tmp_path):
    path = tf.train.Checkpoint(l1=tf.train.Checkpoint(bias=tf.Variable(2.0), kernel=tf.Variable(1.0))).save(
        os.path.join(tmp_path, "c")
    )
    bias, layer = tf.Variable(0.0), tf.train.Checkpoint()
    layer.bias = bias
    status = tf.train.Checkpoint(l1=layer).restore(path)
    assert bias.numpy() == 2.0
    layer.kernel = tf.Variable(0.0)
    assert layer.kernel.numpy() == 1.0
    status.assert_consumed()


def test_cluster_resolvers_are_those_of_mirrored():
    names = ("SimpleClusterResolver", "TFConfigClusterResolver", "SlurmClusterResolver", "KubernetesClusterResolver")
    for name in (*names, "UnionResolver", "ClusterResolver"):
        assert getattr(tf.distribute.cluster_resolver, name) is getattr(mr.cluster, name)
    assert tf.distribute.cluster_resolver.KubernetesExecutableLocation.OFF_CLUSTER.value == 1
    assert tf.train.ClusterSpec is mr.cluster.ClusterSpec


class Model(tf.Module):
    def __init__(self, value):
        super().__init__()
        self.v, self.w = tf.Variable(value), tf.Variable(value + 1)


@pytest.fixture
def model():
    return Model(1.0)


def names(checkpoint, path):
    return [
        name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for name, _ in tf.train.list_variables(checkpoint.write(path))
    ]


def test_the_root_and_keywords_are_interchangeable(tmp_path, model, v):
    wholes = (
        tf.train.Checkpoint(root=model, opt=v),
        tf.train.Checkpoint(model, opt=v),
        tf.train.Checkpoint(v=model.v, w=model.w, opt=v),
        tf.train.Checkpoint(root=tf.train.Checkpoint(v=model.v, w=model.w, opt=v)),
    )
    for number, one in enumerate(wholes):
        assert names(one, tmp_path / str(number)) == ["opt", "v", "w"]
    assert wholes[0].root is model
    other = Model(0.0)
    parts = tf.train.Checkpoint(v=other.v, w=other.w, opt=tf.Variable([0.0, 0.0]))
    parts.read(tmp_path / "0").assert_consumed()
    assert (other.v.numpy(), other.w.numpy(), parts.opt.numpy().tolist()) == (1.0, 2.0, [1.0, 2.0])


def test_a_keyword_cannot_have_the_name_of_a_part_of_the_root(model, v):
    with pytest.raises(ValueError, match=r"keyword argument v if root\.v already exists"):
        tf.train.Checkpoint(root=model, v=v)
    tf.train.Checkpoint(root=model, v=model.v)
    tf.train.Checkpoint(root=None, v=v)


def test_a_compiled_function_writes_and_reads(tmp_path, v):
    checkpoint, path = tf.train.Checkpoint(v=v), os.path.join(tmp_path, "c")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def write_and_change():
        written = checkpoint.write(path)
        v.assign_add(strategy.reduce("SUM", strategy.run(lambda: tf.ones(2)), axis=None))
        return written

    @tf.function
    def read():
        checkpoint.read(path)

    for expected in ([1.0, 2.0], [3.0, 4.0]):
        assert write_and_change() == path
        assert tf.train.load_variable(path, "v").tolist() == expected
    read()
    assert v.numpy().tolist() == [3.0, 4.0]
    with pytest.raises(NotImplementedError, match="not supported"):
        tf.function(lambda: checkpoint.save(path))()


def test_callbacks_of_checkpoints(tmp_path, v):
    seen = []
    options = tf.train.CheckpointOptions(
        enable_async=True,
        experimental_write_callbacks=[lambda: seen.append("written"), lambda path: seen.append(os.path.isdir(path))],
    )
    tf.train.Checkpoint(v=v).save(os.path.join(tmp_path, "c"), options)
    tf.train.Checkpoint(v=v).write(os.path.join(tmp_path, "d"), options)
    assert seen == ["written", True] * 2
    with pytest.raises(ValueError, match="several parameters"):
        tf.train.CheckpointOptions(experimental_write_callbacks=[lambda path, more: None])


def test_a_save_without_the_check_begins_a_new_interval(tmp_path):
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step), tmp_path, None, step_counter=step, checkpoint_interval=10
    )
    saved = []
    for number, checks in ((0, True), (5, False), (11, True), (15, True)):
        step.assign(number)
        saved.append(manager.save(check_interval=checks) is not None)
    assert saved == [True, True, False, True]


def test_a_manager_calls_the_functions_of_its_options(tmp_path):
    called = []
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(0)), tmp_path, 2)
    options = tf.train.CheckpointOptions(experimental_write_callbacks=[called.append, lambda: called.append("done")])
    path = manager.save(options=options)
    assert called == [path, "done"]


def test_a_manager_keeps_at_least_one_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="max_to_keep=0"):
        tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(0)), tmp_path, 0)


def test_restore_or_initialize_reports_names_that_differ(tmp_path, v, caplog):
    tf.train.CheckpointManager(tf.train.Checkpoint(dense=v, step=tf.Variable(9)), tmp_path, 3).save()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(hidden=v, step=tf.Variable(0)), tmp_path, 3)
    assert manager.restore_or_initialize() is not None
    manager.save()
    del manager
    gc.collect()
    assert "the state of 'hidden' is in the checkpoint as 'dense'" in caplog.text


def test_restore_or_initialize_does_not_report_what_is_restored_later(tmp_path, v, caplog):
    module = tf.Module()
    module.w = v
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(module=module), tmp_path, 3)
    manager.save()
    module = tf.Module()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(module=module), tmp_path, 3)
    manager.restore_or_initialize()
    module.w = tf.Variable([0.0, 0.0])
    manager.save()
    del manager
    gc.collect()
    assert module.w.numpy().tolist() == [1.0, 2.0]
    assert "partially restored" not in caplog.text


def test_a_manager_saves_on_sigterm_before_its_interval_has_passed(tmp_path, monkeypatch, v):
    monkeypatch.setenv("MIRRORED_RESTART", "0")  # as `mirrored run` sets it
    monkeypatch.setattr(preemption, "_made", [])
    before = signal.getsignal(signal.SIGTERM)
    try:
        step = tf.Variable(0)
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(v=v, step=step), tmp_path, 3, step_counter=step, checkpoint_interval=20
        )
        manager.save()
        step.assign(7)
        assert manager.save() is None
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            manager.save()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert int(tf.train.load_variable(tmp_path, "step")) == 7
