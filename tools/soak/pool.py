"""A worker process that runs programs; it is restarted after a crash, a deadlock, or a number of programs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

_TOOLS: Final = Path(__file__).parent.parent
_START_SECONDS: Final = 180.0


class Runner:
    """Runs the texts of programs one at a time, each with a time limit.

    Args:
        source: The folder of the `mirrored` package to test, for PYTHONPATH.
        seconds: The time limit of a program.
        programs: Number of programs before the process is replaced; compiled programs fill its memory.
    """

    def __init__(self, source: Path, seconds: float = 90.0, programs: int = 80) -> None:
        self._source, self._seconds, self._limit = source, seconds, programs
        self._process: subprocess.Popen[str] | None = None
        self._reader: int = -1
        self._buffer = b""
        self._count = 0
        self._log: Any = None

    def run(self, text: str) -> dict[str, Any]:
        """Returns the program's `record` or `error`, with `warnings`; or `lost` if the process ended or hung."""
        if self._process is not None and self._count >= self._limit:
            self.close()
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._count += 1
        try:
            self._process.stdin.write(json.dumps({"text": text}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._lost("the process was gone")
        line = self._line(self._seconds)
        if line is not None:
            result: dict[str, Any] = json.loads(line)
            return result
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)  # faulthandler writes the stack of every thread
            time.sleep(0.5)
            return self._lost(f"hangs: no result after {self._seconds:g} s")
        code = self._process.returncode
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return self._lost(f"crashes: {name}")

    def close(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process may not have read its last program
            self._process.stdin.close()
        os.close(self._reader)
        self._log.close()
        self._process = None

    def _start(self) -> None:
        reader, writer = os.pipe()
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self._source), str(_TOOLS)]),
            "MIRRORED_VIRTUAL_DEVICES": "8",
            "KERAS_BACKEND": "jax",
            "SOAK_RESULTS": str(writer),
            "PYTHONUNBUFFERED": "1",
        }
        environment.pop("XLA_FLAGS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "soak.worker"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            env=environment,
            pass_fds=[writer],
            start_new_session=True,
        )
        os.close(writer)
        self._reader, self._buffer, self._count = reader, b"", 0
        if self._line(_START_SECONDS) is None:
            raise RuntimeError(f"the process that runs programs did not start:\n{self._stderr_text()}")

    def _line(self, seconds: float) -> str | None:
        """Returns the next line; None at the end of the stream or after `seconds`."""
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._reader], [], [], left)[0]:
                return None
            read = os.read(self._reader, 1 << 16)
            if not read:
                assert self._process is not None
                self._process.wait()
                return None
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def _lost(self, how: str) -> dict[str, Any]:
        text = self._stderr_text()
        self.close()
        return {"lost": how, "traceback": text}

    def _stderr_text(self) -> str:
        self._log.seek(0)
        return str(self._log.read())[-6000:]
