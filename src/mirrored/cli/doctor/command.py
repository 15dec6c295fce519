"""Implements the command `mirrored doctor`, which runs the checkup program on all workers."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import NoReturn

from mirrored.launcher import Job, detect, run_job


def run_doctor(job: Job, folder: Path | None) -> NoReturn:
    """Starts the checkup program on all workers, like `mirrored run`, and exits with status 1 if it finds faults."""
    job = dataclasses.replace(job, arguments=() if folder is None else (str(folder.absolute()),))
    place = detect(os.environ) if job.nodes == 1 and job.coordinator is None else None
    if place is not None:
        job = dataclasses.replace(job, nodes=place.nodes, node_rank=place.node_rank, coordinator=place.coordinator)
    sys.exit(run_job(job))
