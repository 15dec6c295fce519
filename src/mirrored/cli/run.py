"""The command `mirrored run`: runs a program on several workers."""

from __future__ import annotations

import dataclasses
import sys
from typing import NoReturn

from mirrored.cli.options import with_scheduler_nodes
from mirrored.errors import ArgumentError
from mirrored.launcher import Job, run_job


def run(job: Job, *, replicas: int | None) -> NoReturn:
    """Runs a job on its workers and exits with the job's status; takes missing options from a scheduler like Slurm."""
    if replicas is not None:
        if job.workers > 1 or job.nodes > 1:
            raise ArgumentError(
                "mirrored run",
                found=f"--replicas {replicas} was given with --workers {job.workers} and --nodes {job.nodes}",
                rule="--replicas can be used only for one process with several devices",
                remedy="pass --replicas-per-worker instead of --replicas",
            )
        if job.replicas_per_worker not in (None, replicas):
            raise ArgumentError(
                "mirrored run",
                found=f"--replicas {replicas} was given with --replicas-per-worker {job.replicas_per_worker}",
                rule="both options say how many replicas the process has",
                remedy="pass one of them",
            )
        job = dataclasses.replace(job, replicas_per_worker=replicas)
    if replicas is None:
        job = with_scheduler_nodes(job)
    sys.exit(run_job(job))
