"""A worker process as seen by its launcher: starts it, forwards its output, exchanges messages, and ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from mirrored.launcher.job import Job
from mirrored.launcher.output import Lines, Output
from mirrored.settings import LAUNCHER_FD

LOST_PEER: Final = "lost-peer"
"""The kind of a failure that the end of another worker has caused."""
HANG: Final = "hang"
"""The kind of a failure of all workers by a deadlock; each of them reports its own state."""


class Worker:
    """A worker process, its output pipes, and its socket to the launcher; the constructor starts the process.

    Args:
        job: The job.
        rank: The index of the worker among all workers of the job.
        environment: The environment of the process.
        descriptors: File descriptors that the process inherits.

    Attributes:
        failing: The worker's exit report: the kind of the failure, and a text. None if it has sent none.
        has_shown: Whether it has printed its error.
        note: A text that it has sent and that may explain its end.
        messages: What it has sent about the membership of an elastic job, as JSON.
    """

    def __init__(self, job: Job, rank: int, environment: Mapping[str, str], descriptors: Sequence[int] = ()) -> None:
        self.rank = rank
        self.failing: tuple[str, str] | None = None
        self.has_shown = False
        self.note: str | None = None
        self.messages: list[str] = []
        self._received = b""
        self.channel, child_end = socket.socketpair()
        self.channel.setblocking(False)
        module = ["-m", job.program] if job.is_module else [job.program]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mirrored.launcher.program", *module, *job.arguments],
                env={**environment, LAUNCHER_FD.name: str(child_end.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[child_end.fileno(), *descriptors],
                start_new_session=True,
            )
        finally:
            child_end.close()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._streams = {False: Lines(self.process.stdout.fileno()), True: Lines(self.process.stderr.fileno())}

    @property
    def group(self) -> int:
        """The id of the process group that contains the worker and its child processes."""
        return self.process.pid

    @property
    def code(self) -> int | None:
        """The exit status of the process, negative for a signal; None while the process runs."""
        return self.process.poll()

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors that become readable when the worker prints something or sends a message."""
        return [stream.descriptor for stream in self._streams.values() if stream.open] + [self.channel.fileno()] * (
            self.channel.fileno() >= 0
        )

    def pump(self, output: Output, *, to_the_end: bool = False) -> None:
        """Reads the worker's new output from its pipes, and writes it to the terminal and log files.

        Args:
            output: The destination. Data for which it has no room stays in the pipes.
            to_the_end: Whether to empty the pipes regardless of room; their size is bounded by the system.
        """
        for is_error, stream in self._streams.items():
            while stream.open and (to_the_end or output.has_room) and (lines := stream.read()):
                output.write(self.rank, lines, is_error=is_error)

    def listen(self) -> bool:
        """Reads the worker's new messages, and returns whether the worker asks to print its error.

        A worker asks for this when its program has failed.
        """
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            if self.channel.fileno() >= 0:
                piece = self.channel.recv(1 << 16)
                self._received += piece
                if not piece:
                    self.channel.close()
        *lines, self._received = self._received.split(b"\n")
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
            elif word == "elastic":
                self.messages.append(rest)
        return asks

    def let_go(self) -> None:
        """Permits a failing worker, which waits for this permission, to print its error."""
        with contextlib.suppress(OSError):
            self.channel.send(b"go\n")

    def tell(self, message: str) -> None:
        """Sends the worker a message about the membership of an elastic job, as JSON."""
        with contextlib.suppress(OSError):
            self.channel.send(f"elastic {message}\n".encode())

    def terminate(self) -> None:
        """Sends SIGTERM to the worker alone.

        Its child processes, which may load the data of the steps before the common checkpoint, run until it has ended.
        """
        self.process.terminate()

    def signal(self, number: int) -> None:
        """Sends a signal (such as SIGINT) to the worker and its child processes, as a terminal does."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def end(self, output: Output) -> None:
        """Kills the worker's process group, forwards the remaining output, and closes the pipes."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        # Child processes may survive it by a moment and hold the pipes open: do not wait for the end of the pipes.
        self.pump(output, to_the_end=True)
        for is_error, stream in self._streams.items():
            if rest := stream.rest():
                output.write(self.rank, rest, is_error=is_error)
        for pipe in (self.process.stdout, self.process.stderr, self.channel):
            if pipe is not None:
                pipe.close()


def words_for(code: int) -> str:
    """Describes an exit status in words, such as "was killed by SIGKILL"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def shell_code(code: int) -> int:
    """Converts an exit status to the shell's convention: 128 plus the signal number if a signal ended the process."""
    return code if code >= 0 else 128 - code
