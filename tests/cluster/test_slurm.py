"""The resolver of Slurm's environment."""

from __future__ import annotations

import os

import pytest

from mirrored.cluster import SlurmClusterResolver
from mirrored.cluster.slurm import expand_hostlist, expand_tasks_per_node
from mirrored.errors import AllocationError, ClusterError


@pytest.fixture
def slurm(monkeypatch):
    for name in [one for one in os.environ if one.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def set_to(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_{name}", value)

    return set_to


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("n[0001-0003]", ["n0001", "n0002", "n0003"]),
        ("o[009-011]", ["o009", "o010", "o011"]),
        ("gpu[1,3]-ib,x", ["gpu1-ib", "gpu3-ib", "x"]),
    ],
)
def test_expand_hostlist(text, hosts):
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n[]", "n[a-b]", "n[1-2-3]", "n]1[", ""])
def test_unreadable_hostlist(text):
    with pytest.raises(ClusterError, match="as a list of hosts"):
        expand_hostlist(text)


def test_expand_tasks_per_node():
    assert expand_tasks_per_node("3(x2),2,1") == [3, 3, 2, 1]
    assert expand_tasks_per_node("13(x10)") == [13] * 10
    with pytest.raises(ValueError, match="number of tasks per node"):
        expand_tasks_per_node("3(2)")


def test_from_the_environment_alone(slurm, monkeypatch):
    slurm(PROCID="0", STEP_NUM_TASKS="3", STEP_TASKS_PER_NODE="1(x3)", STEP_NODELIST="h[1-3]")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    resolver = SlurmClusterResolver()
    assert resolver.cluster_spec().as_dict() == {"worker": ["h1:8888", "h2:8888", "h3:8888"]}
    assert resolver.get_task_info() == ("worker", 0)
    assert resolver.num_accelerators() == {"GPU": 1}


def test_hosts_keep_slurms_order(slurm):
    slurm(PROCID="0", STEP_NUM_TASKS="2", STEP_TASKS_PER_NODE="1(x2)", STEP_NODELIST="n[9-10]")
    assert SlurmClusterResolver().cluster_spec().as_dict() == {"worker": ["n9:8888", "n10:8888"]}


def test_several_tasks_on_a_node_share_its_gpus(slurm):
    slurm(PROCID="1", STEP_NUM_TASKS="5", STEP_TASKS_PER_NODE="2(x2),1", STEP_NODELIST="t02n13,t02n41,t02n43")
    resolver = SlurmClusterResolver({"ps": 1, "worker": 4}, gpus_per_node=4, gpus_per_task=2)
    assert resolver.cluster_spec().as_dict() == {
        "ps": ["t02n13:8888"],
        "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"],
    }
    assert resolver.get_task_info() == ("worker", 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert resolver.master() == "grpc://t02n13:8889"
    assert resolver.master("worker", 1, rpc_layer="test") == "test://t02n41:8888"


@pytest.mark.parametrize(
    ("local", "visible", "expected"),
    [
        ("", "4,5,6,7", "6,7"),
        ("0", "4,5,6,7", "4,5"),
        ("1", "4, 5,6,7", "6,7"),
        ("1", "", "2,3"),
        ("1", "0,1", "0,1"),
        ("1", "0,1,-1,3", "0,1"),
    ],
)
def test_a_task_gets_gpus_that_slurm_has_assigned_by_its_place_on_the_node(
    slurm, monkeypatch, local, visible, expected
):
    """Other jobs may use the other GPUs of the node; with --distribution=cyclic the places do not follow the ranks."""
    slurm(PROCID="1", STEP_NUM_TASKS="4", STEP_TASKS_PER_NODE="2(x2)", STEP_NODELIST="h[1-2]", LOCALID=local)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    resolver = SlurmClusterResolver(gpus_per_node=4, gpus_per_task=2)
    for one in (resolver, resolver, SlurmClusterResolver(gpus_per_node=4, gpus_per_task=2)):
        one.cluster_spec()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == expected


def test_explicit_arguments(slurm):
    slurm(PROCID="2", STEP_NODELIST="n[1-3]")
    resolver = SlurmClusterResolver(
        {"ps": 1, "worker": 2}, port_base=9000, tasks_per_node=1, gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False
    )
    assert resolver.cluster_spec().as_dict() == {"ps": ["n1:9000"], "worker": ["n2:9000", "n3:9000"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 0, "x"
    assert resolver.master() == "x://n1:9000"


def test_tasks_per_node_by_host(slurm):
    slurm(PROCID="0")
    resolver = SlurmClusterResolver({"worker": 3}, tasks_per_node={"a": 2, "b": 1}, gpus_per_node=0)
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:8888", "a:8889", "b:8888"]}
    assert resolver.num_accelerators() == {"GPU": 0}


def test_without_nvidia_smi(slurm, monkeypatch, tmp_path):
    slurm(PROCID="0", STEP_NUM_TASKS="1", STEP_TASKS_PER_NODE="1", STEP_NODELIST="n1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert SlurmClusterResolver().num_accelerators() == {"GPU": 0}
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: B'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert SlurmClusterResolver().num_accelerators() == {"GPU": 2}


def test_outside_of_slurm(slurm):
    with pytest.raises(AllocationError, match="SLURM_PROCID not found in environment"):
        SlurmClusterResolver()
    slurm(PROCID="x")
    with pytest.raises(ClusterError, match="SLURM_PROCID=x"):
        SlurmClusterResolver()


def test_more_than_was_assigned(slurm):
    slurm(PROCID="0", STEP_NUM_TASKS="2", STEP_TASKS_PER_NODE="2", STEP_NODELIST="n1")
    with pytest.raises(RuntimeError, match="Requested 9 tasks but only 2 were assigned"):
        SlurmClusterResolver({"worker": 9})
    with pytest.raises(AllocationError, match="Requested more GPUs per node than available"):
        SlurmClusterResolver(gpus_per_node=1, gpus_per_task=1)
    slurm(STEP_TASKS_PER_NODE="1(x3)")
    with pytest.raises(AllocationError, match="1 hosts, and numbers of tasks for 3"):
        SlurmClusterResolver()
