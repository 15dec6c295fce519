from __future__ import annotations

import os

import pytest

from mirrored.errors import AllocationError, ArgumentError
from mirrored.launcher import MachinePlace, detect

SLURM = {
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "node[07-08]",
}
PODS = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2", "MIRRORED_NODES": "3"}


def test_a_task_of_slurm():
    place = detect(SLURM)
    assert place == MachinePlace("Slurm", 4, 3, "node07:13102")
    other = detect({**SLURM, "SLURM_STEP_ID": "3"})
    assert other is not None
    assert other.coordinator != place.coordinator, "steps of one job use different ports"


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"])
def test_a_shell_inside_an_allocation_is_no_task(missing):
    assert detect({name: value for name, value in SLURM.items() if name != missing}) is None


def test_one_task_is_alone():
    assert detect({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert detect({**PODS, "MIRRORED_NODES": "1"}) is None
    assert detect({}) is None


def test_a_pod_of_an_indexed_job():
    place = detect(PODS, "train-2.workers.team.svc.cluster.local")
    assert place == MachinePlace("Kubernetes", 3, 2, "train-0.workers.team.svc.cluster.local:8476")
    assert detect(PODS, "train-2") == MachinePlace("Kubernetes", 3, 2, "train-0:8476")


def test_a_pod_that_does_not_know_how_many_there_are():
    with pytest.raises(AllocationError, match="JOB_COMPLETION_INDEX is set, and MIRRORED_NODES is not"):
        detect({**PODS, "MIRRORED_NODES": ""}, "train-2")


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "MIRRORED_NODES"])
def test_a_number_of_kubernetes_that_is_none_names_the_variable(name):
    with pytest.raises((AllocationError, ArgumentError), match=f"{name}=two: "):
        detect({**PODS, name: "two"}, "train-2")


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"])
def test_a_number_of_slurm_that_is_none_names_the_variable(name):
    with pytest.raises(AllocationError, match=f"{name}=two: "):
        detect({**SLURM, name: "two"})


OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "210698240.0;tcp://10.0.0.7:51213",
}


def test_a_process_of_open_mpi(monkeypatch):
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "4711")
    assert detect(os.environ) == MachinePlace("Open MPI", 2, 1, "10.0.0.7:4711")


@pytest.mark.parametrize("environment", [{"PMI_SIZE": "2", "PMI_RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "0"}])
def test_several_launchers_that_cannot_meet_do_not_start_jobs_of_their_own(environment):
    with pytest.raises(AllocationError, match="one of several .*process 0 of 2.* nothing says how to reach the others"):
        detect(environment)
