"""Running a job: as this very process if there is nothing to watch, else under a supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mirrored.launcher.caching import DIRECTORY_VARIABLE, tidy
from mirrored.launcher.coordination import Coordination, SingleMachine
from mirrored.launcher.environment import worker_environment
from mirrored.launcher.job import Job
from mirrored.launcher.output import Output
from mirrored.launcher.rendezvous import LauncherRendezvous
from mirrored.launcher.supervisor import Supervisor


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
    _open_standard_streams()
    if job.compile_cache:
        environment = worker_environment(job, job.ranks.start, [])
        tidy(Path(environment[DIRECTORY_VARIABLE]))
    if job.num_workers == 1 and not job.max_restarts and job.log_directory is None:
        _become(job)
    meeting: Coordination = SingleMachine(job.workers) if job.nodes == 1 else LauncherRendezvous(job)
    # A stream that is closed is None.
    screen, errors = (None if stream is None else stream.buffer for stream in (sys.stdout, sys.stderr))
    color = sys.stdout is not None and sys.stdout.isatty()
    output = Output(screen, errors, color=color, directory=job.log_directory)
    try:
        return Supervisor(job, output, meeting).run()
    finally:
        meeting.close()


def _open_standard_streams() -> None:
    """Opens what is closed of the descriptors 0, 1 and 2: the next sockets and pipes would get their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _become(job: Job) -> None:
    module = ["-m", job.program] if job.is_module else [job.program]
    command = [sys.executable, "-m", "mirrored.launcher.program", *module, *job.arguments]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, command, worker_environment(job, 0, []))
