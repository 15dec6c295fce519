"""Where the launchers of all machines agree: on the addresses of a start, and on the news of a failure."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Callable

from mirrored.launcher.ports import free_ports


class Coordination(abc.ABC):
    """What the launchers of one job say to each other."""

    @property
    @abc.abstractmethod
    def secret(self) -> str:
        """What the workers of the job authenticate each other by."""

    @abc.abstractmethod
    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Waits for all launchers, and settles the addresses of all workers.

        Args:
            restart: How often the workers were started before.
            is_interrupted: Asked while waiting.

        Returns:
            ``host:port`` of every worker; None if interrupted.
        """

    @abc.abstractmethod
    def news(self) -> str | None:
        """Why another machine's workers were ended, if they were."""

    @abc.abstractmethod
    def tell(self, reason: str) -> None:
        """Has all others end their workers."""

    @abc.abstractmethod
    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Waits, after this machine's workers have ended well, for the others'. Returns why one did not."""

    def close(self) -> None:  # noqa: B027 (not every meeting has something to close)
        """Lets go of connections."""


class SingleMachine(Coordination):
    """The meeting of one machine.

    Args:
        workers: How many there are.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._secret = secrets.token_hex(32)

    @property
    def secret(self) -> str:
        """Generated for this job."""
        return self._secret

    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Ports of this machine."""
        with free_ports(self._workers) as ports:
            return [f"127.0.0.1:{port}" for port in ports]

    def news(self) -> str | None:
        """There are no others."""
        return None

    def tell(self, reason: str) -> None:
        """There are no others."""

    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """There are no others."""
        return None
