"""Implements the command `mirrored doctor`, which runs the checkup program on all workers."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from mirrored.cli.options import with_scheduler_nodes
from mirrored.launcher import Job, run_job


def run_doctor(job: Job, folder: Path | None, *, as_json: bool = False) -> NoReturn:
    """Starts the checkup program on all workers, like `mirrored run`, and exits with status 1 if it finds faults.

    Args:
        job: The workers to check.
        folder: The folder for checkpoints; None to skip the check of the disk.
        as_json: Whether to print JSON, on the machine of worker 0; what the workers print goes to standard error.
    """
    job = dataclasses.replace(job, arguments=() if folder is None else ("--checkpoints", str(folder.absolute())))
    job = with_scheduler_nodes(job)
    if not as_json:
        sys.exit(run_job(job))
    if job.num_workers == 1:  # this process becomes the program
        run_job(dataclasses.replace(job, arguments=(*job.arguments, "--json", "-")))
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "findings.json"
        with contextlib.redirect_stdout(sys.stderr):
            status = run_job(dataclasses.replace(job, arguments=(*job.arguments, "--json", str(path))))
        if path.exists():
            print(path.read_text(encoding="utf-8"))
    sys.exit(status)
