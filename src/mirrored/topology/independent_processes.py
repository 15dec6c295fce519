"""Evidence that this process is one of several that were started together.

Several processes that do not form a job train independent models, each on its own. Nothing else shows it: every one of
them ends with status 0. So a strategy of one process warns if the environment says that there are others.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

from mirrored import settings
from mirrored._jax import coordination
from mirrored._jax.frames import user_stacklevel
from mirrored.errors import IndependentProcessesWarning

# Variables that launchers set in each process: how many processes there are, and which of them this is.
_LAUNCHERS: Final = (
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPI", "PMI_SIZE", "PMI_RANK"),
    ("MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("torchrun", "WORLD_SIZE", "RANK"),
)
_TRAINERS: Final = ("chief", "master", "worker")


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What says that there are several processes.

    Attributes:
        source: The launcher or variable.
        text: The evidence in words, with the values of the variables.
    """

    source: str
    text: str


class _Job:
    is_formed = False


def job_is_formed() -> None:
    """Notes that this process has joined its job by a strategy: others of one process are made on purpose."""
    _Job.is_formed = True


def evidence_of_several(environment: Mapping[str, str] | None = None) -> Evidence | None:
    """What says that this process is one of several; None if nothing does.

    Args:
        environment: Read instead of `os.environ`.

    Example:
        >>> evidence_of_several({"PMI_SIZE": "4", "PMI_RANK": "1"}).text
        'MPI: process 1 of 4 (PMI_SIZE=4, PMI_RANK=1)'
    """
    environment = os.environ if environment is None else environment
    task = _tf_config(environment)
    if task is not None:  # the cluster that the program was given, whatever has started it
        index, count = task
        return Evidence("TF_CONFIG", f"TF_CONFIG: process {index} of {count}") if count > 1 else None
    for launcher, size, rank in _LAUNCHERS:
        if _number(environment, size) > 1 and rank in environment:
            return _evidence(launcher, environment, size, rank)
    return _slurm(environment) or _kubernetes(environment)


def _evidence(launcher: str, environment: Mapping[str, str], size: str, rank: str) -> Evidence:
    text = (
        f"process {environment[rank]} of {environment[size]} ({size}={environment[size]}, {rank}={environment[rank]})"
    )
    return Evidence(launcher, f"{launcher}: {text}")


def _slurm(environment: Mapping[str, str]) -> Evidence | None:
    """A step of `srun`; the shell of `salloc` or `sbatch` has a number of tasks too, but no step with several."""
    if "SLURM_STEP_NODELIST" not in environment or "SLURM_PROCID" not in environment:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    return _evidence("Slurm", environment, size, "SLURM_PROCID") if _number(environment, size) > 1 else None


def _kubernetes(environment: Mapping[str, str]) -> Evidence | None:
    """An indexed job: the first pod is not told whether there are others, except by `settings.NODES`."""
    index = _number(environment, "JOB_COMPLETION_INDEX")
    if "KUBERNETES_SERVICE_HOST" not in environment or (index < 1 and (settings.NODES.read(environment) or 1) == 1):
        return None
    return Evidence("Kubernetes", f"Kubernetes: pod {index} of an indexed job (JOB_COMPLETION_INDEX={index})")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() else 0


def _tf_config(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """This task and the number of tasks that train with it; None without a cluster.

    What is malformed says nothing here: the resolver reports it where the cluster is used.
    """
    try:
        config = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = config["cluster"], config["task"]
        if task["type"] not in _TRAINERS:  # an evaluator works by itself
            return str(task["type"]), 1
        return f"{task['type']} {task['index']}", sum(len(_tasks(cluster.get(job, ()))) for job in _TRAINERS)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _tasks(tasks: Any) -> Any:
    return [tasks] if isinstance(tasks, str) else tasks


def warn_if_independent(called: str) -> None:
    """Warns that a strategy of this process alone leaves the other processes to train models of their own.

    Args:
        called: The strategy.
    """
    if _Job.is_formed:
        return
    if coordination.is_connected():
        here, count = coordination.this_process(), coordination.num_processes()
        found = f"jax.distributed: process {here} of {count}"
    else:
        evidence = evidence_of_several()
        if evidence is None:
            return
        found = evidence.text
    warnings.warn(
        f"{called}: this process was started as one of several ({found}), but this strategy has the devices of this "
        "process only: every process trains an independent model. Make a MultiWorkerMirroredStrategy to train one "
        "model on all of them. If independent models are what you want, ignore the category "
        "mirrored.errors.IndependentProcessesWarning",
        IndependentProcessesWarning,
        stacklevel=user_stacklevel(),
    )
