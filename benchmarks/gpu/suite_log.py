"""A pytest plugin: every test's start and result as a line of a file, at once."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from gpu.suite import LOG_VARIABLE


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes that a test starts."""
    _write(test=nodeid, what="started")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes a result; that of set-up and tear-down only if they did not pass."""
    if report.when == "call" or not report.passed:
        text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        _write(test=report.nodeid, what=report.outcome, seconds=report.duration, text=text[-5000:])


def _write(**entry: Any) -> None:
    with open(os.environ[LOG_VARIABLE], "a") as file:
        file.write(json.dumps(entry) + "\n")
