"""Running a job: as this very process if there is nothing to watch, else under a supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mirrored.launch.caching import DIRECTORY_VARIABLE, tidy
from mirrored.launch.environment import worker_environment
from mirrored.launch.job import Job
from mirrored.launch.machines import Machines
from mirrored.launch.meeting import Alone, Meeting
from mirrored.launch.output import Output
from mirrored.launch.supervisor import Supervisor


def run_job(job: Job) -> int:
    """Runs a job to its end.

    Context: the main thread of a process that does nothing else: with one worker, and neither restarts nor logs, this
    process becomes the program, with its terminal, its debugger and its exit status.

    Returns:
        The exit status.

    Raises:
        ArgumentError: The job does not hold together.
        DeviceError: There are not as many accelerators as the workers are to have.
        RendezvousError: The launchers of several machines did not meet.
    """
    job.check()
    if job.compile_cache:
        environment = worker_environment(job, job.ranks.start, [])
        tidy(Path(environment[DIRECTORY_VARIABLE]))
    if job.num_workers == 1 and not job.max_restarts and job.log_directory is None:
        _become(job)
    meeting: Meeting = Alone(job.workers) if job.nodes == 1 else Machines(job)
    output = Output(sys.stdout.buffer, sys.stderr.buffer, color=sys.stdout.isatty(), directory=job.log_directory)
    try:
        return Supervisor(job, output, meeting).run()
    finally:
        meeting.close()


def _become(job: Job) -> None:
    module = ["-m", job.program] if job.is_module else [job.program]
    command = [sys.executable, "-m", "mirrored.launch.program", *module, *job.arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, worker_environment(job, 0, []))
