"""Detects which of a job's machines this launcher is on, from environment variables of Slurm, Kubernetes or MPI."""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from typing import Final

from mirrored import settings
from mirrored._jax import distributed
from mirrored.cluster.slurm import expand_hostlist
from mirrored.errors import AllocationError
from mirrored.topology.independent_processes import evidence_of_several

_PORT: Final = 8476
# Job steps of one allocation, and jobs on one machine, use different ports for their rendezvous.
_PORTS: Final = 20_000
_DETECTION_SECONDS: Final = 60


@dataclasses.dataclass(frozen=True)
class MachinePlace:
    """This machine's index in a job, the number of machines and the coordinator's address, as given by a scheduler.

    Attributes:
        scheduler: The scheduler's name.
        nodes: The number of launchers that it has started.
        node_rank: The index of this launcher.
        coordinator: ``host:port`` of the rendezvous.
    """

    scheduler: str
    nodes: int
    node_rank: int
    coordinator: str


def detect(environment: Mapping[str, str], hostname: str | None = None) -> MachinePlace | None:
    """Returns this machine's index, the number of machines and the coordinator of a Slurm, Kubernetes or MPI job.

    Returns None if no such scheduler has started this process.

    Raises:
        AllocationError: The environment says that there are other launchers, but not how to reach them.
    """
    found = _in_slurm(environment) or _in_kubernetes(environment, hostname or socket.getfqdn())
    return found or _in_mpi(environment)


def _in_slurm(environment: Mapping[str, str]) -> MachinePlace | None:
    """Returns this machine's place (index, count, coordinator) if `srun` started several launchers; otherwise None."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
    rank, hosts = environment.get("SLURM_PROCID"), environment.get("SLURM_STEP_NODELIST")
    if not (tasks and rank and hosts):
        return None
    count = _number("SLURM_STEP_NUM_TASKS" if environment.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS", tasks)
    if count == 1:
        return None
    job, step = (_number(name, environment.get(name) or "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = 10_000 + (job * 31 + step) % _PORTS
    return MachinePlace("Slurm", count, _number("SLURM_PROCID", rank), f"{expand_hostlist(hosts)[0]}:{port}")


def _in_kubernetes(environment: Mapping[str, str], hostname: str) -> MachinePlace | None:
    """Returns this pod's place (index, count, coordinator) in a Kubernetes indexed job of several pods, else None."""
    index = environment.get("JOB_COMPLETION_INDEX")
    if not environment.get("KUBERNETES_SERVICE_HOST") or index is None:
        return None
    pods = settings.NODES.read(environment)
    if pods is None:
        raise AllocationError(
            "mirrored run in Kubernetes",
            found="JOB_COMPLETION_INDEX is set, and MIRRORED_NODES is not",
            rule="MIRRORED_NODES must be set: Kubernetes tells a pod of a job its index, but not the number of pods",
            remedy="set MIRRORED_NODES in the container's env to the job's completions, or pass --nodes, --node-rank "
            "and --coordinator",
        )
    if pods == 1:
        return None
    first, _, domain = hostname.partition(".")
    name = re.sub(rf"-{re.escape(index)}$", "-0", first)
    rank = _number("JOB_COMPLETION_INDEX", index)
    return MachinePlace("Kubernetes", pods, rank, f"{name}{'.' * bool(domain)}{domain}:{_PORT}")


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise AllocationError(
            f"{name}={text}",
            found=f"{text!r} is not a number",
            rule=f"{name} must be an int, 0 or more; the scheduler sets it",
            remedy="unset the variable if the scheduler has not set it, or pass --nodes, --node-rank and --coordinator",
        )
    return int(text)


def _in_mpi(environment: Mapping[str, str]) -> MachinePlace | None:
    """Returns this machine's place (index, count, coordinator) if `mpirun` started several launchers; otherwise None.

    Open MPI 4 gives an address for the rendezvous; other MPI libraries give only the number of processes.
    """
    evidence = evidence_of_several({name: text for name, text in environment.items() if name != "TF_CONFIG"})
    if evidence is None or evidence.source in ("Slurm", "Kubernetes"):
        return None
    try:
        found = distributed.detect(_DETECTION_SECONDS) if evidence.source == "Open MPI" else None
    except distributed.DetectionError as error:
        raise _no_rendezvous_error(f"{evidence.text}, and JAX's detection fails ({error})") from error
    if found is None:
        raise _no_rendezvous_error(evidence.text)
    return MachinePlace("Open MPI", found.num_processes, found.process_id, found.coordinator)


def _no_rendezvous_error(found: str) -> AllocationError:
    return AllocationError(
        "mirrored run",
        found=f"this launcher is one of several ({found}), and nothing says how to reach the others",
        rule="the launchers of a job must have one rendezvous address; without it each would start a job of its own",
        remedy="pass --nodes, --node-rank and --coordinator; to start independent jobs, unset these variables",
    )
