"""The description of a job: a program, its number of workers, and its number of machines."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path

from mirrored.errors import ArgumentError

# Finds free ports.


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Context manager that yields different free ports of this machine, and reserves them during the ``with`` block.

    Another program may take a port between the end of the block and its use. The coordinator then names the port in
    its error, and the launcher restarts the workers with other ports.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        yield [one.getsockname()[1] for one in sockets]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The description of a job: a program, the number of workers and machines to run it on, and other options.

    Attributes:
        program: A Python file, or the name of a module if `is_module`.
        arguments: The arguments of the program.
        is_module: Whether to start `program` as ``python -m`` does.
        workers: The number of processes on this machine.
        replicas_per_worker: The number of devices of each worker: accelerators if the machine has any, otherwise
            virtual devices. None: all that it finds.
        nodes: The number of machines, each with `workers` processes.
        node_rank: The index of this machine, from 0.
        coordinator: ``host:port`` of machine 0, the address of the rendezvous; required with several machines.
        max_restarts: The maximum number of restarts of all workers after a failure.
        log_directory: A folder that receives the output of each worker in addition; None for no logs.
        grace_seconds: How long the workers may take to save and end after a SIGTERM.
        meeting_seconds: The timeout of the rendezvous of the launchers of several machines.
        compile_cache: Whether to keep compiled programs between runs.
        elastic: Whether the job continues without restarting processes when a worker is lost or joins.
        min_workers: The least number of workers with which an elastic job continues.
        max_workers: The number of workers that an elastic job has if none is lost; None: `workers`.
    """

    program: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    workers: int = 1
    replicas_per_worker: int | None = None
    nodes: int = 1
    node_rank: int = 0
    coordinator: str | None = None
    max_restarts: int = 0
    log_directory: Path | None = None
    grace_seconds: float = 30.0
    meeting_seconds: float = 300.0
    compile_cache: bool = True
    elastic: bool = False
    min_workers: int = 1
    max_workers: int | None = None

    @property
    def num_workers(self) -> int:
        """The total number of workers, on all machines."""
        return self.workers * self.nodes

    @property
    def ranks(self) -> range:
        """The indices of this machine's workers among all workers of the job."""
        return range(self.node_rank * self.workers, (self.node_rank + 1) * self.workers)

    def check(self) -> None:
        """Raises ArgumentError if the program does not exist, or if options of the job contradict each other.

        Raises:
            ArgumentError: The program does not exist, or the options for machines contradict each other.
        """
        if not self.is_module and not Path(self.program).is_file():
            raise _error(
                f"there is no file {self.program!r}", "the program must be a Python file", "check the path, or pass -m"
            )
        if not 0 <= self.node_rank < self.nodes:
            raise _error(
                f"--node-rank {self.node_rank} is not a machine of --nodes {self.nodes}",
                "--node-rank must be at least 0 and less than --nodes",
                f"pass a rank from 0 to {self.nodes - 1}",
            )
        if self.nodes > 1 and not self.coordinator:
            raise _error(
                f"--nodes {self.nodes} was given without --coordinator",
                "the launchers of all machines must have one address at which they find each other",
                "pass --coordinator HOST:PORT on every machine: a host name of machine 0 and a port that is free there",
            )
        if self.coordinator is not None:
            _check_address(self.coordinator)
        self._check_elastic()

    def _check_elastic(self) -> None:
        if not self.elastic:
            if self.min_workers != 1 or self.max_workers is not None:
                raise _error(
                    "--min-workers or --max-workers was given without --elastic",
                    "only the number of workers of an elastic job changes",
                    "pass --elastic, or --workers alone",
                )
            return
        if self.nodes > 1:
            raise _error(
                f"--elastic was given with --nodes {self.nodes}",
                "an elastic job runs on one machine, whose launcher hosts the membership",
                "omit --elastic; with --max-restarts the job restarts from the newest checkpoint",
            )
        most = self.workers if self.max_workers is None else self.max_workers
        if not 1 <= self.min_workers <= self.workers <= most:
            raise _error(
                f"--min-workers {self.min_workers}, --workers {self.workers}, --max-workers {most}",
                "--workers must be between --min-workers and --max-workers",
                "pass, for example, --min-workers 1 --workers 4 --max-workers 4",
            )


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise _error(
            f"--coordinator {address!r} is not an address",
            "an address must be a host and a port",
            "write host0.example.com:8476",
        )


def _error(found: str, rule: str, remedy: str) -> ArgumentError:
    return ArgumentError("mirrored run", found=found, rule=rule, remedy=remedy)
