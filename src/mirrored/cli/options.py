"""The command line options that several subcommands share, defined once with their name, type and help text."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from mirrored.errors import AllocationError, ArgumentError

if TYPE_CHECKING:
    from mirrored.launcher import Job

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")


def job_options(command: Command) -> Command:
    """Decorator that adds the options for a job's workers and machines, such as ``--workers``, to a command."""
    for option in reversed(
        (
            click.option("--workers", type=click.IntRange(min=1), default=1,
                         help="Number of processes on this machine."),
            click.option("--replicas-per-worker", type=click.IntRange(min=1),
                         help="Number of accelerators of each worker, or of virtual CPU devices if there are none."),
            click.option("--nodes", type=click.IntRange(min=1), default=1, help="Number of machines."),
            click.option("--node-rank", type=click.IntRange(min=0), default=0, help="Index of this machine, from 0."),
            click.option("--coordinator", metavar="HOST:PORT",
                         help="Address on machine 0 for the rendezvous of all machines."),
        )
    ):  # fmt: skip
        command = option(command)

    @functools.wraps(command)
    def checked(*arguments: Any, coordinator: str | None, **options: Any) -> Any:
        context = click.get_current_context()
        # A script may pass --nodes 1.
        has_nodes = context.get_parameter_source("nodes") is not ParameterSource.DEFAULT
        if context.get_parameter_source("node_rank") is not ParameterSource.DEFAULT and not has_nodes:
            raise ArgumentError(
                f"mirrored {context.info_name}",
                found=f"--node-rank {options['node_rank']} was given without --nodes",
                rule="--node-rank is the index of this machine among several, whose number is --nodes; a scheduler "
                "such as Slurm gives both",
                remedy="pass --nodes and --coordinator, too, or omit --node-rank",
            )
        if coordinator is not None and not has_nodes:
            raise ArgumentError(
                f"mirrored {context.info_name}",
                found=f"--coordinator {coordinator} was given without --nodes",
                rule="--coordinator is where the launchers of several machines meet, whose number is --nodes",
                remedy="pass --nodes and --node-rank on every machine, too, or omit --coordinator",
            )
        return command(*arguments, coordinator=coordinator, **options)

    return cast(Command, checked)


def with_scheduler_nodes(job: Job) -> Job:
    """Returns `job` with the node count, node rank and coordinator that a scheduler such as Slurm provides.

    Without a scheduler, or if the command line sets several nodes or a coordinator, `job` is returned unchanged.

    Raises:
        AllocationError: The scheduler has started several launchers, and ``--nodes 1`` was given or nothing says how to
            reach the others.
    """
    from mirrored.launcher import detect

    place = detect(os.environ) if job.nodes == 1 and job.coordinator is None else None
    if place is None:
        return job
    context = click.get_current_context(silent=True)
    if context is not None and context.get_parameter_source("nodes") is ParameterSource.COMMANDLINE:
        raise AllocationError(
            f"mirrored {context.info_name}",
            found=f"--nodes 1 was given, and {place.scheduler} has started {place.nodes} launchers, of which this is "
            f"number {place.node_rank}",
            rule="--nodes must be the number of launchers of the job, each of which counts as a machine",
            remedy=f"omit --nodes to start one job, or pass --nodes {place.nodes}, --node-rank and --coordinator; for "
            "independent jobs unset the variables of the scheduler",
        )
    return dataclasses.replace(job, nodes=place.nodes, node_rank=place.node_rank, coordinator=place.coordinator)
