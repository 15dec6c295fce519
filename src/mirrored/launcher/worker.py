"""One worker as the launcher sees it: a process in a group of its own, its output, its word."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from mirrored.launcher.job import Job
from mirrored.launcher.output import Lines, Output
from mirrored.settings import LAUNCHER_FD

LOST_PEER: Final = "lost-peer"
"""A failure that another worker's end has caused."""
HANG: Final = "hang"
"""The workers cannot go on; each can tell where it stands."""


class Worker:
    """Starts a worker.

    Args:
        job: What is run.
        rank: Which worker of all.
        environment: Of the process.

    Attributes:
        failing: What the worker says of its failure: a kind and a text. None before.
        has_shown: Whether it has printed its error.
        note: What it has said that may explain its end.
    """

    def __init__(self, job: Job, rank: int, environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.failing: tuple[str, str] | None = None
        self.has_shown = False
        self.note: str | None = None
        self._heard = b""
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        module = ["-m", job.program] if job.is_module else [job.program]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mirrored.launcher.program", *module, *job.arguments],
                env={**environment, LAUNCHER_FD.name: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._streams = {False: Lines(self.process.stdout.fileno()), True: Lines(self.process.stderr.fileno())}

    @property
    def group(self) -> int:
        """The process group of the worker and all that it has started."""
        return self.process.pid

    @property
    def code(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def descriptors(self) -> list[int]:
        """What to wait on for news."""
        return [stream.descriptor for stream in self._streams.values() if stream.open] + [self.channel.fileno()] * (
            self.channel.fileno() >= 0
        )

    def pump(self, output: Output, *, to_the_end: bool = False) -> None:
        """Shows what it has printed since.

        Args:
            output: Where to show it. What the reader there has no time for is left in the pipes.
            to_the_end: Whether to empty the pipes, which hold no more than the system lets them.
        """
        for is_error, stream in self._streams.items():
            while stream.open and (to_the_end or output.has_room) and (lines := stream.read()):
                output.write(self.rank, lines, is_error=is_error)

    def listen(self) -> bool:
        """Takes in what it has said. Returns whether it wants to be told to go on."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            if self.channel.fileno() >= 0:
                piece = self.channel.recv(1 << 16)
                self._heard += piece
                if not piece:
                    self.channel.close()
        *lines, self._heard = self._heard.split(b"\n")
        asks = False
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "failing":
                kind, _, text = rest.partition(" ")
                self.failing, asks = (kind, text), True
            elif word == "shown":
                self.has_shown = True
            elif word == "note":
                self.note = rest
        return asks

    def let_go(self) -> None:
        """Lets a failing worker print its error."""
        with contextlib.suppress(OSError):
            self.channel.send(b"go\n")

    def signal(self, number: int) -> None:
        """Sends a signal to the worker and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def end(self, output: Output) -> None:
        """Kills what is left of it, shows its last words and lets everything go."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        # What it started may have survived it by a moment and hold the pipes: their end is not waited for.
        self.pump(output, to_the_end=True)
        for pipe in (self.process.stdout, self.process.stderr, self.channel):
            if pipe is not None:
                pipe.close()


def words_for(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def shell_code(code: int) -> int:
    """The exit status as a shell gives it: 128 and the signal."""
    return code if code >= 0 else 128 - code
