"""Which machine of a job this is, where a scheduler says so: Slurm and Kubernetes."""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from typing import Final

from mirrored.cluster.slurm import expand_hostlist
from mirrored.errors import AllocationError

_PORT: Final = 8476
# Several steps of one allocation, and several jobs on one machine, meet at different ports.
_PORTS: Final = 20_000


@dataclasses.dataclass(frozen=True)
class Place:
    """What a scheduler says of this launcher.

    Attributes:
        scheduler: Its name.
        nodes: How many launchers it has started.
        node_rank: Which of them this is.
        coordinator: ``host:port`` where they meet.
    """

    scheduler: str
    nodes: int
    node_rank: int
    coordinator: str


def detect(environment: Mapping[str, str], hostname: str | None = None) -> Place | None:
    """The place of this launcher in a Slurm step or a Kubernetes job; None outside of them, or if it is alone there.

    Raises:
        AllocationError: The scheduler says only half of it.
    """
    return _in_slurm(environment) or _in_kubernetes(environment, hostname or socket.getfqdn())


def _in_slurm(environment: Mapping[str, str]) -> Place | None:
    """`srun` has started one launcher per task; a shell of `salloc` or `sbatch` is none of them."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
    rank, hosts = environment.get("SLURM_PROCID"), environment.get("SLURM_STEP_NODELIST")
    if not (tasks and rank and hosts) or int(tasks) == 1:
        return None
    job, step = int(environment.get("SLURM_JOB_ID", "0")), int(environment.get("SLURM_STEP_ID", "0"))
    port = 10_000 + (job * 31 + step) % _PORTS
    return Place("Slurm", int(tasks), int(rank), f"{expand_hostlist(hosts)[0]}:{port}")


def _in_kubernetes(environment: Mapping[str, str], hostname: str) -> Place | None:
    """An indexed job with a headless service: pod i of job "train" is the host train-i."""
    index = environment.get("JOB_COMPLETION_INDEX")
    if not environment.get("KUBERNETES_SERVICE_HOST") or index is None:
        return None
    pods = environment.get("MIRRORED_NODES")
    if not pods:
        raise AllocationError(
            "mirrored run in Kubernetes",
            found="JOB_COMPLETION_INDEX without MIRRORED_NODES",
            rule="a pod of an indexed job is told its index, but not how many there are",
            remedy="set MIRRORED_NODES in the container's env to the job's completions, or give --nodes, --node-rank "
            "and --coordinator",
        )
    if int(pods) == 1:
        return None
    first, _, domain = hostname.partition(".")
    name = re.sub(rf"-{re.escape(index)}$", "-0", first)
    return Place("Kubernetes", int(pods), int(index), f"{name}{'.' * bool(domain)}{domain}:{_PORT}")
