"""A process that was given no cluster: what JAX's detection says, or that there is no description."""

from __future__ import annotations

import json

import pytest

import mirrored as mr
from mirrored._jax import distributed
from mirrored.cluster.detecting import detected_process, resolver_of

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "210698240.0;tcp://10.0.0.7,10.1.0.7:51213",
    "JAX_COORDINATOR_PORT": "4711",
}
SLURM = {
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "JAX_COORDINATOR_PORT": "4711",
}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for name in ("TF_CONFIG", "JAX_COORDINATOR_ADDRESS", "KUBERNETES_SERVICE_HOST", *OPEN_MPI, *SLURM):
        monkeypatch.delenv(name, raising=False)


def started(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "coordinator", "method"),
    [(OPEN_MPI, "10.0.0.7:4711", "ompi"), (SLURM, "node07:4711", "slurm")],
    ids=["Open MPI", "Slurm"],
)
def test_what_jax_detects(monkeypatch, environment, coordinator, method):
    started(monkeypatch, environment)
    process = detected_process("MultiWorkerMirroredStrategy", 1)
    assert process is not None
    assert (process.coordinator, process.num_processes, process.index) == (coordinator, 4, 3)
    assert process.detection == method
    resolver = resolver_of(process)
    assert (resolver.task_type, resolver.task_id) == ("worker", 3)
    assert resolver.cluster_spec().num_tasks("worker") == 4
    assert len(set(resolver.cluster_spec().as_dict()["worker"])) == 4


def test_one_process_is_alone(monkeypatch):
    assert detected_process("it", 1) is None
    started(monkeypatch, {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"})
    assert detected_process("it", 1) is None


def test_a_pod_without_an_index_is_alone(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert detected_process("it", 1) is None, "JAX's own method would warn, or ask the cluster"


@pytest.mark.parametrize(
    "environment",
    [
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
        {"WORLD_SIZE": "2", "RANK": "1"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"},
        {**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "that is none"},
        {**SLURM, "SLURM_NTASKS": "many"},
    ],
    ids=["MPICH", "torchrun", "Kubernetes", "Open MPI, unreadable", "Slurm, unreadable"],
)
def test_several_processes_without_a_description_are_refused(monkeypatch, environment):
    started(monkeypatch, environment)
    with pytest.raises(mr.errors.ClusterError, match="nothing says how to reach the others"):
        mr.MultiWorkerMirroredStrategy()


def test_a_given_cluster_of_one_task_warns_among_several(monkeypatch):
    started(monkeypatch, OPEN_MPI)
    resolver = mr.cluster.SimpleClusterResolver(
        mr.cluster.ClusterSpec({"worker": ["a:1"]}), task_type="worker", task_id=0
    )
    with pytest.warns(mr.errors.IndependentProcessesWarning, match="Open MPI: process 3 of 4"):
        mr.MultiWorkerMirroredStrategy(resolver)


def test_tf_config_counts_before_what_jax_detects(monkeypatch):
    started(monkeypatch, SLURM)
    alone = {"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(alone))
    assert mr.MultiWorkerMirroredStrategy().cluster_resolver.task_id == 0


def test_a_method_that_fails_says_which(monkeypatch):
    started(monkeypatch, {**SLURM, "SLURM_PROCID": "x"})
    with pytest.raises(distributed.DetectionError, match="SlurmCluster: ValueError"):
        distributed.detect(1)
