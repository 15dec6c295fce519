from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from mirrored.watchdog.fail_fast_exit import is_lost_peer


@pytest.mark.parametrize(
    "message",
    [
        "UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:41133",
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)",
    ],
)
def test_jaxs_word_for_the_end_of_another_worker(message):
    assert is_lost_peer(jax.errors.JaxRuntimeError(message))


def test_xlas_error_for_a_lost_peer_that_jax_converts():
    assert is_lost_peer(ValueError("UNKNOWN: Gloo all-to-all failed: [pair.cc:547] Connection closed by peer"))
    assert not is_lost_peer(ValueError("the name Gloo is taken: connection closed by peer"))


def test_errors_of_ones_own():
    assert not is_lost_peer(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert not is_lost_peer(ConnectionResetError("Connection closed by peer"))


_FAILING = """
import atexit, sys, time
import jax
from mirrored.watchdog import fail_fast_exit

def interrupted(*_):
    raise KeyboardInterrupt

atexit.register(print, "the shutdown barrier")
"""


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("sys.excepthook = interrupted; fail_fast_exit.install_fail_fast(); 1 / 0", 1),
        (
            "fail_fast_exit.install_fail_fast(); fail_fast_exit.report_exit_by(print, lambda: None)\n"
            "time.sleep = interrupted; raise jax.errors.JaxRuntimeError('Connection closed by peer')",
            130,
        ),
    ],
    ids=["while the error is printed", "while the watchdog may know more"],
)
def test_a_second_interrupt_ends_the_process_without_the_shutdown_barrier(program: str, status: int) -> None:
    command = [sys.executable, "-c", _FAILING + program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (status, ""), ended.stderr
