"""What strategies of TensorFlow 1 offered."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def lists(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.unwrap(value)]


def test_a_dataset_iterator_splits_global_batches_and_begins_again(strategy):
    iterator = strategy.make_dataset_iterator(mr.data.Dataset.range(4).batch(2))
    for _ in range(2):
        iterator.initialize()
        seen = [lists(strategy, strategy.experimental_run(lambda x: x * 10, iterator)) for _ in range(2)]
        assert seen == [[[0], [10]], [[20], [30]]]
        with pytest.raises(mr.errors.EndOfDataError, match="End of sequence"):
            strategy.experimental_run(lambda x: x, iterator)


def test_an_input_fn_iterator_gives_an_element_to_each_replica(strategy):
    iterator = strategy.make_input_fn_iterator(lambda context: mr.data.Dataset.range(4).batch(2))
    assert lists(strategy, strategy.experimental_run(lambda x: x, iterator)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="Input replication mode not supported: 'x'"):
        strategy.make_input_fn_iterator(lambda context: mr.data.Dataset.range(4), "x")


def test_running_without_an_iterator_and_grouping(strategy):
    assert strategy.experimental_run(lambda: 3) == 3
    assert strategy.group(jnp.ones(2)) is None


@pytest.mark.parametrize("method", ["make_dataset_iterator", "make_input_fn_iterator"])
def test_iterators_are_not_made_inside_a_replica(strategy, method):
    with pytest.raises(RuntimeError, match=f"Strategy.{method}: it was called inside a replica"):
        strategy.run(lambda: getattr(strategy, method)(None))


@pytest.mark.parametrize("cluster", [None, {"worker": ["a:1"]}, {"worker": {0: "a:1"}, "ps": ["b:1"]}])
def test_a_cluster_of_one_worker_changes_nothing(strategy, cluster):
    assert strategy.configure(cluster_spec=cluster) is None
    assert strategy.num_replicas_in_sync == 2


def test_a_cluster_of_several_workers_is_refused(strategy):
    with pytest.raises(ValueError, match="the cluster has 3 workers"):
        strategy.configure(cluster_spec={"chief": ["a:1"], "worker": ["b:1", "c:1"]})


class Config:
    isolate_session_state = False


def test_the_configuration_of_sessions_is_copied(strategy):
    given = Config()
    assert strategy.update_config_proto(given).isolate_session_state is True
    assert given.isolate_session_state is False
    assert strategy.update_config_proto(None) is None


def test_local_results_of_empty_structures_are_one_for_each_replica(strategy):
    assert strategy.local_results({}) == ({}, {})
    assert strategy.local_results([]) == ([], [])
    assert strategy.local_results((None,)) == ((None,), (None,))  # as in TensorFlow
