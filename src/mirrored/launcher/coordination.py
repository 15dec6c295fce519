"""Coordination of the launchers of all machines: the workers' addresses at each start, and reports of failures."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Callable

from mirrored.launcher.job import free_ports


class Coordination(abc.ABC):
    """The interface through which a launcher communicates with the other launchers of its job."""

    @property
    @abc.abstractmethod
    def secret(self) -> str:
        """The secret with which the workers of the job authenticate each other."""

    @abc.abstractmethod
    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Performs the rendezvous: waits for all launchers, and determines the addresses of all workers.

        Args:
            restart: The number of restarts so far.
            is_interrupted: Called repeatedly while waiting; True ends the wait.

        Returns:
            ``host:port`` of every worker; None if interrupted.
        """

    @abc.abstractmethod
    def news(self) -> str | None:
        """Returns why another machine's workers were ended; None if they were not."""

    @abc.abstractmethod
    def tell(self, reason: str) -> None:
        """Makes all other launchers end their workers."""

    @abc.abstractmethod
    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Waits for the workers of the other machines, after this machine's have succeeded.

        Returns:
            Why a worker elsewhere failed; None if all succeeded.
        """

    def close(self) -> None:  # noqa: B027 (not every subclass has something to close)
        """Closes the connections."""


class SingleMachine(Coordination):
    """The coordination of a job on one machine: there are no other launchers.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._secret = secrets.token_hex(32)

    @property
    def secret(self) -> str:
        """A secret generated for this job."""
        return self._secret

    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Returns free ports of this machine."""
        with free_ports(self._workers) as ports:
            return [f"127.0.0.1:{port}" for port in ports]

    def news(self) -> str | None:
        """Returns None: there are no other machines."""
        return None

    def tell(self, reason: str) -> None:
        """Does nothing: there are no other launchers."""

    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Returns None: there are no other workers to wait for."""
        return None
