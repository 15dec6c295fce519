"""The options that several commands have, so that they have one name, one type and one help text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from mirrored.errors import ArgumentError

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
        if coordinator is not None and context.get_parameter_source("nodes") is ParameterSource.DEFAULT:
            raise ArgumentError(
                f"mirrored {context.info_name}",
                found=f"--coordinator {coordinator} was given without --nodes",
                rule="--coordinator is where the launchers of several machines meet, whose number is --nodes",
                remedy="pass --nodes and --node-rank on every machine, too, or omit --coordinator",
            )
        return command(*arguments, coordinator=coordinator, **options)

    return cast(Command, checked)
