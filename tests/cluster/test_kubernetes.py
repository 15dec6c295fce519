"""The resolver of pods, with clients that answer from a table."""

from __future__ import annotations

import sys
import types

import pytest

from mirrored.cluster import ExecutableLocation, KubernetesClusterResolver
from mirrored.errors import AllocationError, ArgumentError, ClusterError, MissingExtraError


class Client:
    """Answers as `kubernetes.client.CoreV1Api` does."""

    def __init__(self, pods):
        self._pods = pods

    def list_pod_for_all_namespaces(self, label_selector):
        named = types.SimpleNamespace
        return named(
            items=[
                named(metadata=named(name=name), status=named(phase=phase, host_ip=address))
                for name, phase, address in self._pods[label_selector]
            ]
        )


PODS = [("w-abc", "Running", "10.1.2.3"), ("w-def", "Running", "10.1.2.4"), ("w-999", "Running", "10.1.2.5")]


def test_pods_are_sorted_by_name():
    resolver = KubernetesClusterResolver(override_client=Client({"job-name=tensorflow": PODS}))
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.1.2.5:8470", "10.1.2.3:8470", "10.1.2.4:8470"]}
    assert resolver.master() == ""
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.master() == "grpc://10.1.2.5:8470"
    assert resolver.master("worker", 2, "") == "grpc://10.1.2.4:8470"
    with pytest.raises(ClusterError, match="No task with index 3"):
        resolver.master("worker", 3)


def test_several_labels_and_jobs():
    client = Client({"a": PODS[:1], "b": PODS[1:2], "c": PODS[2:]})
    resolver = KubernetesClusterResolver({"worker": ["b", "a"], "ps": ["c"]}, tf_server_port=1, override_client=client)
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.1.2.4:1", "10.1.2.3:1"], "ps": ["10.1.2.5:1"]}


def test_pod_that_does_not_run():
    resolver = KubernetesClusterResolver(override_client=Client({"job-name=tensorflow": [("p", "Failed", "1.2.3.4")]}))
    with pytest.raises(AllocationError, match='Pod "p" is not running; phase: "Failed"'):
        resolver.cluster_spec()


@pytest.mark.parametrize("location", list(ExecutableLocation))
def test_client_is_made_for_the_location(monkeypatch, location):
    loaded = []
    config = types.ModuleType("kubernetes.config")
    config.load_kube_config = lambda: loaded.append(ExecutableLocation.OFF_CLUSTER)
    config.load_incluster_config = lambda: loaded.append(ExecutableLocation.WITHIN_CLUSTER)
    client = types.ModuleType("kubernetes.client")
    client.CoreV1Api = lambda: Client({"job-name=tensorflow": PODS[:1]})
    monkeypatch.setitem(sys.modules, "kubernetes", types.ModuleType("kubernetes"))
    monkeypatch.setitem(sys.modules, "kubernetes.config", config)
    monkeypatch.setitem(sys.modules, "kubernetes.client", client)
    resolver = KubernetesClusterResolver(executable_location=location)
    assert loaded == [location]
    assert resolver.cluster_spec().num_tasks("worker") == 1


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mirrored\[kubernetes\]', or give override_client"):
        KubernetesClusterResolver()


def test_location_that_is_none():
    with pytest.raises(ArgumentError, match="executable_location=None"):
        KubernetesClusterResolver(override_client=Client({}), executable_location=None)
