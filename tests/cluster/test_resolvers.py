"""Resolvers of given clusters: one, several together, TF_CONFIG."""

from __future__ import annotations

import json

import pytest

from mirrored.cluster import ClusterSpec, SimpleClusterResolver, TFConfigClusterResolver, UnionResolver
from mirrored.errors import ArgumentTypeError, ClusterError, ClusterKeyError

CLUSTER = {"ps": ["p0:1", "p1:1"], "worker": ["w0:2", "w1:2"]}


@pytest.fixture
def configure(monkeypatch):
    def set_to(config):
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
        return TFConfigClusterResolver()

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return set_to


# Given


def test_simple():
    spec = ClusterSpec(CLUSTER)
    resolver = SimpleClusterResolver(spec, "m:1", "worker", 1, "", {"GPU": 3}, "grpc")
    assert resolver.cluster_spec() is spec
    assert resolver.master() == "grpc://m:1"
    assert resolver.master("worker", 0) == "grpc://w0:2"
    assert resolver.master("worker", 0, "http") == "http://w0:2"
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.num_accelerators() == {"GPU": 3}
    assert resolver.environment == ""
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 0, "x"
    assert (resolver.task_type, resolver.task_id, resolver.master("ps", 0)) == ("ps", 0, "x://p0:1")


def test_simple_without_anything():
    resolver = SimpleClusterResolver(ClusterSpec({}))
    assert (resolver.master(), resolver.task_type, resolver.task_id, resolver.num_accelerators()) == (
        "",
        None,
        None,
        {},
    )
    assert SimpleClusterResolver(ClusterSpec({}), rpc_layer="grpc").master() == "grpc://"


def test_simple_of_wrong_kinds():
    with pytest.raises(ArgumentTypeError, match="must be a `ClusterSpec`"):
        SimpleClusterResolver(CLUSTER)
    with pytest.raises(TypeError, match="must be a string"):
        SimpleClusterResolver(ClusterSpec({}), master=3)


# Together


def simple(cluster, **options):
    return SimpleClusterResolver(ClusterSpec(cluster), **options)


def test_union_of_lists():
    first = simple(
        {"worker": ["a:1", "b:1"]}, task_type="worker", task_id=1, num_accelerators={"GPU": 3}, rpc_layer="grpc"
    )
    union = UnionResolver(first, simple({"worker": ["c:1"], "ps": ["d:1"]}))
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:1", "c:1"], "ps": ["d:1"]}
    assert union.master() == "grpc://"
    assert union.master("worker", 2) == "c:1"
    assert (union.task_type, union.task_id, union.rpc_layer, union.environment) == ("worker", 1, "grpc", "")
    assert union.num_accelerators() == {"GPU": 3}
    union.task_type, union.task_id, union.rpc_layer = "ps", 0, "x"
    assert (union.task_type, union.task_id, union.master("ps", 0)) == ("ps", 0, "x://d:1")


def test_union_of_single_tasks():
    union = UnionResolver(simple({"worker": {1: "a:1"}}), simple({"worker": {3: "b:1"}}), simple({"worker": ["c:1"]}))
    assert union.cluster_spec().as_dict() == {"worker": {0: "c:1", 1: "a:1", 3: "b:1"}}


@pytest.mark.parametrize("other", [{1: "b:1"}, ["x:1", "y:1"]])
def test_union_of_clashing_tasks(other):
    with pytest.raises(ClusterKeyError, match="Duplicate keys detected when merging"):
        UnionResolver(simple({"worker": {1: "a:1"}}), simple({"worker": other})).cluster_spec()
    assert issubclass(ClusterKeyError, KeyError)


def test_union_of_what_is_none():
    with pytest.raises(ArgumentTypeError, match="must be `ClusterResolver`s"):
        UnionResolver(simple({}), ClusterSpec({}))
    with pytest.raises(ClusterError, match="At least one"):
        UnionResolver()


# TF_CONFIG


def test_tf_config_of_a_worker(configure):
    resolver = configure({"cluster": CLUSTER, "task": {"type": "worker", "index": "1"}})
    assert resolver.cluster_spec() == ClusterSpec(CLUSTER)
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, None)
    assert resolver.master() == "w1:2"
    assert resolver.master("ps", 0) == "p0:1"
    assert resolver.master("ps", 0, rpc_layer="grpc") == "grpc://p0:1"


def test_tf_config_with_some_tasks_of_a_job(configure):
    cluster = {"ps": ["p0:1", "p1:1"], "worker": {"1": "w1:2"}}
    resolver = configure({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    assert resolver.cluster_spec() == ClusterSpec({"ps": ["p0:1", "p1:1"], "worker": {1: "w1:2"}})
    assert resolver.master() == "w1:2"
    with pytest.raises(ClusterError, match="malformed"):
        configure({"cluster": {"worker": {"first": "w1:2"}}}).cluster_spec()


def test_arguments_beat_tf_config_and_attributes_beat_both(configure):
    configure({"cluster": CLUSTER, "rpc_layer": "grpc", "task": {"type": "ps", "index": 1}})
    resolver = TFConfigClusterResolver(task_type="ps", task_id=0)
    assert resolver.master() == "grpc://p0:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "test"
    assert resolver.master() == "test://w1:2"


def test_tf_config_with_a_session_master(configure):
    assert configure({"session_master": "sm:1", "cluster": CLUSTER}).master() == "sm:1"


@pytest.mark.parametrize("config", ["", "{}", '{"cluster": {}}', '{"cluster": {"worker": ["w0:2"]}}'])
def test_tf_config_without_others(configure, config):
    assert configure(config).master() == ""


def test_tf_config_not_set(configure):
    resolver = TFConfigClusterResolver()
    assert (resolver.master(), resolver.task_type, resolver.task_id) == ("", None, None)
    assert resolver.cluster_spec() == ClusterSpec({})


def test_task_type_is_text(configure):
    assert configure({"task": {"type": 123456}}).task_type == "123456"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{bad", "it is not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"cluster": 3}', "its 'cluster' is 3"),
        ('{"cluster": {"worker": "w0:2"}}', "lists of addresses by job"),
        ('{"cluster": {"worker": [2]}}', "lists of addresses by job"),
        ('{"cluster": {"worker": ["w:1", "w:1"]}}', "gives the address w:1 to 2 tasks"),
        ('{"cluster": {"chief": ["w:1"], "worker": ["w:1"]}}', "gives the address w:1 to 2 tasks"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": {"type": "worker", "index": 7}}', "No task with index 7"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": {"type": "chief", "index": 0}}', "No such job in cluster"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": {"type": "worker", "index": "x"}}', "task.index is 'x'"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": {"type": "worker", "index": 0.7}}', "task.index is 0.7"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": {"type": "worker", "index": -1}}', "task.index is -1"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": {"type": "worker", "index": true}}', "task.index is True"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}, "task": "worker"}', "its 'task' is 'worker'"),
        ('{"cluster": {"worker": ["w:1", "v:1"]}}', "does not say which task this is"),
    ],
)
def test_malformed_tf_config(configure, config, message):
    resolver = configure(config)
    with pytest.raises(ClusterError, match=message):
        resolver.master()
    assert issubclass(ClusterError, ValueError)
