"""Runs the tests of one file of TensorFlow on the stand-in, in this process.

    python -m tf_conformance.worker FOLDER FILE OUTPUT SECONDS PATTERN

Writes a line of JSON per test, and one at the end.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import os
import re
import signal
import sys
import time
import traceback
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from tf_conformance.results import Outcome

_MODULE: Final = "tensorflow_test"
_LAST_SECONDS: Final = 120.0  # how long a worker waits for the others


class _OutOfTimeError(BaseException):
    """A test took too long; tests catch `Exception`."""


class _Recorder(unittest.TestResult):
    """Writes every result as it comes.

    Args:
        output: The file for the lines.
        seconds: Time limit of a test in seconds.
        folder: The folder of TensorFlow's tests, whose lines messages show.
    """

    def __init__(self, output: TextIO, seconds: float, folder: Path) -> None:
        super().__init__()
        self._output = output
        self._seconds = seconds
        self._folder = str(folder)
        self._problems: list[str] = []
        self._skipped: str | None = None

    def write(self, test: str, outcome: Outcome, message: str = "") -> None:
        """Writes the line of a test."""
        self._output.write(json.dumps({"test": test, "outcome": outcome, "message": message}) + "\n")
        self._output.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._problems, self._skipped = [], None
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._problems.append(self.describe(err[1]))

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._skipped = reason

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        outcome = Outcome.FAILED if self._problems else Outcome.PASSED if self._skipped is None else Outcome.SKIPPED
        self.write(name_of(test), outcome, "\n".join(self._problems) or self._skipped or "")
        super().stopTest(test)

    def describe(self, error: BaseException) -> str:
        """The error, the lines of the test and the innermost lines of mirrored."""
        frames = traceback.extract_tb(error.__traceback__)
        test = [f"{Path(one.filename).name}:{one.lineno} {one.line}" for one in frames if self._folder in one.filename]
        test = [one for one in test if not one.startswith("test_combinations")]
        own = [f"{one.filename.rpartition('/src/')[2]}:{one.lineno}" for one in frames if "/mirrored/" in one.filename]
        text = f"{type(error).__name__}: {str(error)[:900]}\n  at " + " | ".join(test[-3:])
        return text + ("\n  in " + " | ".join(own[-3:]) if own else "")


def name_of(test: unittest.TestCase) -> str:
    """`CLASS.METHOD` of a test."""
    return test.id().removeprefix(_MODULE + ".")


def _leaves(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from _leaves(one)
        else:
            yield one


def _load(path: Path) -> types.ModuleType:
    """Executes a test file as a module."""
    module = types.ModuleType(_MODULE)
    module.__file__ = str(path)
    sys.modules[_MODULE] = module
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def _run_class(tests: list[unittest.TestCase], recorder: _Recorder) -> None:
    """Runs the tests of one class between its set-up and its tear-down."""
    from tf_conformance.stand_in import process_state

    case = type(tests[0])
    try:
        case.setUpClass()
    except BaseException as error:
        outcome = Outcome.SKIPPED if isinstance(error, unittest.SkipTest) else Outcome.FAILED
        for test in tests:
            recorder.write(name_of(test), outcome, "setUpClass: " + recorder.describe(error))
        return
    for test in tests:
        try:
            test(recorder)
        except _OutOfTimeError as error:  # raised between a test and the recorder's handlers
            recorder.addError(test, (type(error), error, None))
            recorder.stopTest(test)
        process_state.reset()
    with contextlib.suppress(Exception):
        case.tearDownClass()


def _wait_for_others(output: Path) -> None:
    """Waits until all workers have run their tests: a worker that ends is lost to one that still runs some."""
    deadline = time.monotonic() + _LAST_SECONDS
    while time.monotonic() < deadline:
        files = [one.read_text(encoding="utf-8") for one in output.parent.glob("worker_*.jsonl")]
        if all('"end"' in text.rpartition("\n{")[2] for text in files):
            return
        time.sleep(0.2)


def main(folder: str, file: str, output: str, seconds: str, pattern: str) -> None:
    """Runs the tests of a file.

    Args:
        folder: The folder `tensorflow/python`.
        file: The path below it.
        output: The file for the results.
        seconds: Time limit of a test in seconds.
        pattern: Pattern of the tests to run.
    """

    def late(number: int, frame: types.FrameType | None) -> None:
        raise _OutOfTimeError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    from tf_conformance.stand_in import modules
    from tf_conformance.stand_in.combinations import WORKERS

    modules.install(Path(folder))
    with open(output, "w", encoding="utf-8") as lines:
        recorder = _Recorder(lines, float(seconds), Path(folder))
        try:
            module = _load(Path(folder, file))
        except BaseException as error:
            recorder.write("<import>", Outcome.FAILED, recorder.describe(error))
            raise
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        tests = [test for test in _leaves(suite) if fnmatch.fnmatchcase(name_of(test), pattern)]
        tests = [test for test in tests if not name_of(test).endswith(".test_session")]
        if WORKERS > 1:  # a test that names no number of workers runs in one process
            tests = [test for test in tests if re.search("MultiWorker|_numworkers_", name_of(test))]
        for _, group in itertools.groupby(tests, key=type):
            _run_class(list(group), recorder)
        lines.write(json.dumps({"end": True}) + "\n")
    sys.stdout.flush()
    _wait_for_others(Path(output))
    os._exit(0)  # threads of failed tests must not keep the process alive


if __name__ == "__main__":
    main(*sys.argv[1:])
