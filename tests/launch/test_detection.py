from __future__ import annotations

import pytest

from mirrored.errors import AllocationError
from mirrored.launch import Place, detect

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
    assert place == Place("Slurm", 4, 3, "node07:13102")
    other = detect({**SLURM, "SLURM_STEP_ID": "3"})
    assert other is not None
    assert other.coordinator != place.coordinator, "steps of one job meet at different ports"


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"])
def test_a_shell_inside_an_allocation_is_no_task(missing):
    assert detect({name: value for name, value in SLURM.items() if name != missing}) is None


def test_one_task_is_alone():
    assert detect({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert detect({**PODS, "MIRRORED_NODES": "1"}) is None
    assert detect({}) is None


def test_a_pod_of_an_indexed_job():
    place = detect(PODS, "train-2.workers.team.svc.cluster.local")
    assert place == Place("Kubernetes", 3, 2, "train-0.workers.team.svc.cluster.local:8476")
    assert detect(PODS, "train-2") == Place("Kubernetes", 3, 2, "train-0:8476")


def test_a_pod_that_does_not_know_how_many_there_are():
    with pytest.raises(AllocationError, match="JOB_COMPLETION_INDEX without MIRRORED_NODES"):
        detect({**PODS, "MIRRORED_NODES": ""}, "train-2")
