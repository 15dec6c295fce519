"""Communication between the launchers of a job's machines: they exchange workers' addresses and report failures."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Callable

from mirrored.launcher.job import free_ports


class Coordination(abc.ABC):
    """Interface by which one machine's launcher communicates with the launchers of the other machines."""

    @property
    @abc.abstractmethod
    def secret(self) -> str:
        """The shared secret by which the job's workers authenticate each other."""

    @abc.abstractmethod
    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Waits until the launchers of all machines are ready, and returns the addresses of all workers.

        Args:
            restart: The number of restarts so far.
            is_interrupted: Called repeatedly while waiting; True ends the wait.

        Returns:
            ``host:port`` of every worker; None if interrupted.
        """

    @abc.abstractmethod
    def news(self) -> str | None:
        """Returns why another machine's workers were ended; None if no other machine has ended its workers."""

    @abc.abstractmethod
    def tell(self, reason: str) -> None:
        """Notifies all other launchers that a worker has failed, so that they end their workers."""

    @abc.abstractmethod
    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Waits until all other machines' workers have ended; returns the reason if any failed, else None.

        Called after this machine's workers have succeeded.

        Returns:
            Why a worker elsewhere failed; None if all succeeded.
        """

    def close(self) -> None:  # noqa: B027 (not every subclass has something to close)
        """Closes the connections to the launchers of the other machines."""


class SingleMachine(Coordination):
    """The implementation of `Coordination` for a job on one machine, without other launchers.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._secret = secrets.token_hex(32)

    @property
    def secret(self) -> str:
        """A random secret, by which the job's workers authenticate each other."""
        return self._secret

    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Returns an address on this machine, with a free port, for each worker."""
        with free_ports(self._workers) as ports:
            return [f"127.0.0.1:{port}" for port in ports]

    def news(self) -> str | None:
        """Returns None, because no other machine can report failures."""
        return None

    def tell(self, reason: str) -> None:
        """Does nothing, because there are no other launchers to notify."""

    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Returns None, because there are no other machines' workers to wait for."""
        return None
