"""What is to be run: a program, on how many workers, on how many machines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mirrored.errors import ArgumentError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A program and the processes that it runs on.

    Attributes:
        program: A Python file, or the name of a module if `is_module`.
        arguments: Of the program.
        is_module: Whether `program` is started as ``python -m`` would.
        workers: Processes on this machine.
        replicas_per_worker: Devices of each: accelerators where there are some, else virtual devices. None: as found.
        nodes: How many machines take part, each with `workers` processes.
        node_rank: Which of them this is, from 0.
        coordinator: ``host:port`` of machine 0, where the launchers meet; needed with several machines.
        max_restarts: How often all workers are started again after one has failed.
        log_directory: Where the output of each worker goes as well, None for nowhere.
        grace_seconds: How long the workers have to save and end after a SIGTERM.
        meeting_seconds: How long the launchers of several machines wait for each other.
        compile_cache: Whether compiled programs are kept between runs.
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

    @property
    def num_workers(self) -> int:
        """How many processes there are on all machines."""
        return self.workers * self.nodes

    @property
    def ranks(self) -> range:
        """Which workers run on this machine."""
        return range(self.node_rank * self.workers, (self.node_rank + 1) * self.workers)

    def check(self) -> None:
        """Refuses what cannot be run.

        Raises:
            ArgumentError: The program is not there, or the machines do not fit together.
        """
        if not self.is_module and not Path(self.program).is_file():
            raise _error(
                f"there is no file {self.program!r}", "the program is a Python file", "look at the path, or give -m"
            )
        if not 0 <= self.node_rank < self.nodes:
            raise _error(
                f"--node-rank {self.node_rank} of --nodes {self.nodes}",
                "machines are numbered from 0",
                f"give a rank from 0 to {self.nodes - 1}",
            )
        if self.nodes > 1 and not self.coordinator:
            raise _error(
                f"--nodes {self.nodes} without --coordinator",
                "the launchers of all machines meet at one address",
                "give --coordinator HOST:PORT on every machine: a name of machine 0 and a port that is free there",
            )
        if self.coordinator is not None:
            _check_address(self.coordinator)


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise _error(f"--coordinator {address!r}", "an address is a host and a port", "write host0.example.com:8476")


def _error(found: str, rule: str, remedy: str) -> ArgumentError:
    return ArgumentError("mirrored run", found=found, rule=rule, remedy=remedy)
