"""Detects processes that a launcher started together but that have not joined one distributed job.

Such processes train independent models, and no error shows it: every process exits with status 0. So a single-process
strategy warns if the environment describes several processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

from mirrored import settings
from mirrored._jax import distributed
from mirrored._jax.source_lines import user_stacklevel
from mirrored.errors import IndependentProcessesWarning

# Environment variables that launchers set in each process: the number of processes, and the index of this one.
_LAUNCHERS: Final = (
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPI", "PMI_SIZE", "PMI_RANK"),
    ("MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("torchrun", "WORLD_SIZE", "RANK"),
)
_TRAINERS: Final = ("chief", "master", "worker")


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Environment variables that show that this process is one of several started by a launcher.

    Attributes:
        source: The launcher or environment variable.
        text: A description of the evidence, with the values of the environment variables.
    """

    source: str
    text: str


class _Job:
    is_formed = False


@distributed.on_leave
def _reset() -> None:
    _Job.is_formed = False


def job_is_formed() -> None:
    """Records that this process has joined its distributed job, so that single-process strategies no longer warn.

    In such a process they are intentional.
    """
    _Job.is_formed = True


def evidence_of_several(environment: Mapping[str, str] | None = None) -> Evidence | None:
    """Returns evidence in environment variables that this process is one of several; None without such evidence.

    Args:
        environment: The environment to read. Default: `os.environ`.

    Example:
        >>> evidence_of_several({"PMI_SIZE": "4", "PMI_RANK": "1"}).text
        'MPI: process 1 of 4 (PMI_SIZE=4, PMI_RANK=1)'
    """
    environment = os.environ if environment is None else environment
    task = _tf_config(environment)
    if task is not None:  # the configured cluster takes precedence over the launcher
        index, count = task
        return Evidence("TF_CONFIG", f"TF_CONFIG: process {index} of {count}") if count > 1 else None
    for launcher, size, rank in _LAUNCHERS:
        if _number(environment, size) > 1 and rank in environment:
            return _evidence(launcher, environment, size, rank)
    return _elastic(environment) or _slurm(environment) or _kubernetes(environment)


def _evidence(launcher: str, environment: Mapping[str, str], size: str, rank: str) -> Evidence:
    text = (
        f"process {environment[rank]} of {environment[size]} ({size}={environment[size]}, {rank}={environment[rank]})"
    )
    return Evidence(launcher, f"{launcher}: {text}")


def _elastic(environment: Mapping[str, str]) -> Evidence | None:
    """Returns evidence that this process is a worker of an elastic job, or None.

    The process is outside of its training function (`elastic.run`).
    """
    if not settings.ELASTIC.is_set(environment):
        return None
    number = f"worker {environment[settings.ELASTIC.name]} ({settings.ELASTIC.name})"
    return Evidence("mirrored run --elastic", f"mirrored run --elastic: {number}, outside of an elastic.run function")


def _slurm(environment: Mapping[str, str]) -> Evidence | None:
    """Returns evidence that `srun` started this process as one of several tasks, or None.

    The shell that `salloc` or `sbatch` starts is no such task.
    """
    if "SLURM_STEP_NODELIST" not in environment or "SLURM_PROCID" not in environment:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    return _evidence("Slurm", environment, size, "SLURM_PROCID") if _number(environment, size) > 1 else None


def _kubernetes(environment: Mapping[str, str]) -> Evidence | None:
    """Returns evidence that this process runs in one of several pods of an indexed Kubernetes job, or None.

    In pod 0 this is known only from `settings.NODES`, the number of pods.
    """
    index = _number(environment, "JOB_COMPLETION_INDEX")
    if "KUBERNETES_SERVICE_HOST" not in environment or (index < 1 and (settings.NODES.read(environment) or 1) == 1):
        return None
    return Evidence("Kubernetes", f"Kubernetes: pod {index} of an indexed job (JOB_COMPLETION_INDEX={index})")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() else 0


def _tf_config(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns this task and the number of training tasks in `TF_CONFIG`; None without a cluster.

    It ignores malformed values: the cluster resolver reports them.
    """
    try:
        config = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = config["cluster"], config["task"]
        if task["type"] not in _TRAINERS:  # an evaluator is not part of the job
            return str(task["type"]), 1
        return f"{task['type']} {task['index']}", sum(len(_tasks(cluster.get(job, ()))) for job in _TRAINERS)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _tasks(tasks: Any) -> Any:
    return [tasks] if isinstance(tasks, str) else tasks


def warn_if_independent(called: str) -> None:
    """Warns if several processes each create a single-process strategy, which would train independent models.

    Args:
        called: The name of the strategy.
    """
    if _Job.is_formed:
        return
    if distributed.is_connected():
        here, count = distributed.this_process(), distributed.num_processes()
        found = f"jax.distributed: process {here} of {count}"
    else:
        evidence = evidence_of_several()
        if evidence is None:
            return
        found = evidence.text
    warnings.warn(
        f"{called}: this process was started as one of several ({found}), but this strategy uses only the devices of "
        "this process: every process trains an independent model. Use MultiWorkerMirroredStrategy to train one model "
        "on all of them. If independent models are intended, filter warnings of the category "
        "mirrored.errors.IndependentProcessesWarning",
        IndependentProcessesWarning,
        stacklevel=user_stacklevel(),
    )
