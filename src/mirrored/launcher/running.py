"""Runs a job: the launcher process becomes the program if no supervision is needed, else it supervises workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mirrored.launcher.coordination import Coordination, SingleMachine
from mirrored.launcher.elastic import ElasticSupervisor
from mirrored.launcher.environment import DIRECTORY_VARIABLE, check_cluster, tidy, worker_environment
from mirrored.launcher.job import Job
from mirrored.launcher.output import Output
from mirrored.launcher.rendezvous import LauncherRendezvous
from mirrored.launcher.supervisor import Supervisor


def run_job(job: Job) -> int:
    """Runs a job until it has ended, and returns its exit status.

    Context: the main thread of a process that does nothing else. With one worker, no restarts and no logs, this process
    is replaced by the program, which keeps the terminal, a debugger and its own exit status.

    Returns:
        The exit status.

    Raises:
        ArgumentError: The options of the job are wrong or contradict each other.
        ClusterError: TF_CONFIG has another cluster.
        DeviceError: The machine has fewer accelerators than the workers need.
        RendezvousError: The rendezvous of the launchers of several machines failed.
    """
    job.check()
    check_cluster(job, os.environ)
    _open_standard_streams()
    if job.compile_cache:
        directory = worker_environment(job, job.ranks.start, [])[DIRECTORY_VARIABLE]
        if directory:  # the user may have disabled the cache by an empty value, which is no folder
            tidy(Path(directory))
    if job.num_workers == 1 and not job.max_restarts and job.log_directory is None and not job.elastic:
        _become(job)
    rendezvous: Coordination = SingleMachine(job.workers) if job.nodes == 1 else LauncherRendezvous(job)
    # Python represents a closed stream as None.
    screen, errors = (None if stream is None else stream.buffer for stream in (sys.stdout, sys.stderr))
    color = sys.stdout is not None and sys.stdout.isatty()
    output = Output(screen, errors, color=color, directory=job.log_directory)
    try:
        return (ElasticSupervisor if job.elastic else Supervisor)(job, output, rendezvous).run()
    finally:
        rendezvous.close()


def _open_standard_streams() -> None:
    """Opens every closed descriptor among 0, 1 and 2, so that no socket or pipe gets such a number."""
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
