"""Several processes that do not form a job: strategies of one process warn, whatever has started them."""

from __future__ import annotations

import json
import warnings

import pytest

import mirrored as mr
from mirrored.errors import IndependentProcessesWarning
from mirrored.topology import independent_processes
from mirrored.topology.independent_processes import evidence_of_several

TASK = {"type": "worker", "index": 1}
SEVERAL = {
    "mirrored run": {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "a:2"]}, "task": TASK})},
    "chief and worker": {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "worker": "a:2"}, "task": TASK})},
    "Open MPI": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
    "mirrored run --elastic": {"MIRRORED_ELASTIC": "1"},
    "MPICH": {"PMI_SIZE": "2", "PMI_RANK": "1"},
    "MVAPICH": {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"},
    "torchrun": {"WORLD_SIZE": "2", "RANK": "1"},
    "srun": {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "n1"},
    "a later pod": {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"},
    "a pod that knows": {"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "0", "MIRRORED_NODES": "2"},
}
ONE = {
    "nothing": {},
    "one worker": {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})},
    "an evaluator beside two workers": {
        "TF_CONFIG": json.dumps({
            "cluster": {"worker": ["a:1", "a:2"], "evaluator": ["a:3"]},
            "task": {"type": "evaluator", "index": 0},
        }),
        "SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "n1",
    },
    "TF_CONFIG that is malformed": {"TF_CONFIG": "{"},
    "a number that is malformed": {"OMPI_COMM_WORLD_SIZE": "two", "OMPI_COMM_WORLD_RANK": "1"},
    "mpirun -n 1": {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    "the shell of sbatch": {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
    "the shell of salloc": {
        "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n1",
    },
    "a notebook in a pod": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variables in (*SEVERAL.values(), *ONE.values()):
        for name in variables:
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("environment", SEVERAL.values(), ids=SEVERAL)
def test_evidence_of_several_processes(environment):
    evidence = evidence_of_several(environment)
    assert evidence is not None
    assert evidence.source in evidence.text


@pytest.mark.parametrize("environment", ONE.values(), ids=ONE)
def test_no_evidence(environment):
    assert evidence_of_several(environment) is None


@pytest.mark.parametrize("make", [mr.MirroredStrategy, lambda: mr.OneDeviceStrategy("CPU:0")], ids=["all", "one"])
@pytest.mark.parametrize("environment", SEVERAL.values(), ids=SEVERAL)
def test_a_strategy_of_one_process_warns_among_several(monkeypatch, environment, make):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(IndependentProcessesWarning, match="every process trains an independent model") as caught:
        make()
    assert [warning.filename for warning in caught] == [__file__], "the line of the user, once"


@pytest.mark.parametrize("environment", ONE.values(), ids=ONE)
def test_a_process_alone_is_not_warned(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mr.MirroredStrategy()
        mr.OneDeviceStrategy("CPU:0")


def test_a_job_that_the_user_has_formed_is_evidence(monkeypatch):
    monkeypatch.setattr(independent_processes.distributed, "is_connected", lambda: True)
    monkeypatch.setattr(independent_processes.distributed, "num_processes", lambda: 2)
    with pytest.warns(IndependentProcessesWarning, match=r"jax\.distributed: process 0 of 2"):
        mr.MirroredStrategy()


def test_who_has_joined_its_job_makes_other_strategies_on_purpose(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setattr(independent_processes._Job, "is_formed", False)
    independent_processes.job_is_formed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mr.MirroredStrategy()
