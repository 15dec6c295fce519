"""The strategy of the contrib era."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf

CPUS = ["CPU:0", "CPU:1"]


def strategy(**options):
    return tf.contrib.distribute.MirroredStrategy(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"devices": CPUS, "num_gpus": 2}, "devices=.* and a number of GPUs=2"),
        ({"num_gpus": 1, "num_gpus_per_worker": 1}, "num_gpus=1 and num_gpus_per_worker=1"),
        ({"cross_device_ops": 1, "cross_tower_ops": 2}, "cross_device_ops=1 and cross_tower_ops=2"),
        ({"num_gpus": -1}, "num_gpus=-1"),
        ({"num_gpus": True}, "num_gpus=True"),
    ],
)
def test_arguments_that_exclude_each_other(options, match):
    with pytest.raises(ValueError, match=match):
        strategy(**options)


def test_devices_and_the_alias_of_cross_device_ops():
    made = strategy(devices=CPUS, cross_tower_ops=tf.distribute.ReductionToOneDevice())
    assert made.num_replicas_in_sync == 2
    assert isinstance(made.cross_device_ops, type(tf.distribute.ReductionToOneDevice()))
    assert strategy(num_gpus=0).num_replicas_in_sync == 1


def test_dataset_iterator_gives_a_batch_to_each_replica():
    s = strategy(devices=CPUS)
    iterator = s.make_dataset_iterator(tf.data.Dataset.range(8).batch(2))
    iterator.initialize()
    results = [s.unwrap(s.experimental_run(lambda x: x * 10, iterator)) for _ in range(2)]
    assert [[np.asarray(part).tolist() for part in result] for result in results] == [
        [[0, 10], [20, 30]],
        [[40, 50], [60, 70]],
    ]


def test_batches_are_per_replica_until_the_end_and_iterators_are_made_outside_of_run():
    s = strategy(devices=CPUS)
    iterator = s.make_dataset_iterator(tf.data.Dataset.range(4).batch(2))
    assert [[np.asarray(part).tolist() for part in s.unwrap(element)] for element in iterator] == [[[0, 1], [2, 3]]]
    with pytest.raises(RuntimeError, match="make_dataset_iterator"):
        s.run(lambda: s.make_dataset_iterator(tf.data.Dataset.range(4)))


def test_input_fn_iterator_feeds_call_for_each_replica():
    s = strategy(devices=CPUS)
    seen = []

    def input_fn(context):
        seen.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return (
            tf.data.Dataset.from_tensors([[1.0]]).repeat().shard(context.num_input_pipelines, context.input_pipeline_id)
        )

    with s.scope():
        iterator = s.make_input_fn_iterator(input_fn)
        iterator.initialize()
        results = s.extended.call_for_each_replica(lambda x: x + 1, args=(iterator.get_next(),))
    assert [np.asarray(part).tolist() for part in s.unwrap(results)] == [[[2.0]], [[2.0]]]
    assert seen == [(1, 2)]


def test_reduce_run_and_the_rest():
    s = strategy(devices=CPUS)
    assert s.experimental_initialize() == s.experimental_finalize() == []
    total = s.reduce(tf.distribute.ReduceOp.SUM, s.experimental_run(lambda: jnp.float32(2)), axis=None)
    assert float(total) == 4.0
    config = object()
    assert s.update_config_proto(config) is config


def test_configure_takes_one_worker_and_names_the_way_for_several():
    s = strategy(devices=CPUS)
    s.configure(cluster_spec={"worker": ["a:1"], "ps": ["b:1"]}, task_type="worker", task_id=0)
    with pytest.raises(ValueError, match="the cluster has 2 workers"):
        s.configure(cluster_spec={"worker": ["a:1", "b:1"]}, task_type="worker", task_id=0)


def test_numpy_iterator_gives_each_replica_a_batch():
    s = strategy(devices=CPUS)
    rows = np.arange(8).reshape(4, 2)
    iterator = s.experimental_make_numpy_iterator(rows, 2, shuffle=None)
    assert [part.tolist() for part in s.unwrap(iterator.get_next())] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        iterator.get_next()
    shuffled = s.experimental_make_numpy_iterator(rows, 2, num_epochs=None)
    for _ in range(3):
        seen = np.concatenate([np.asarray(part) for part in s.unwrap(shuffled.get_next())])
        assert sorted(seen[:, 0].tolist()) == [0, 2, 4, 6]
