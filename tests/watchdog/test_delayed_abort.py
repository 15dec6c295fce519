from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.multiprocess

PROGRAM = """
import ctypes, faulthandler, os, signal, sys, threading, time
from mirrored.watchdog.fail_fast_exit import delay_aborts, is_aborting
how = sys.argv[1]
if how == "faulthandler": faulthandler.enable()
print(delay_aborts(), is_aborting(), flush=True)
if how == "faulthandler": os._exit(0)
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
start = time.monotonic()
while not is_aborting() and time.monotonic() - start < 3: time.sleep(0.01)
if how == "told":
    print("told", flush=True)
    os._exit(1)
time.sleep(30)
"""


def run(how: str) -> tuple[int, list[str], float]:
    start = time.monotonic()
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=50, env=path)
    return ran.returncode, ran.stdout.splitlines(), time.monotonic() - start


def test_an_abort_waits_for_another_thread_to_tell_why():
    assert run("told")[:2] == (1, ["True False", "told"])


def test_a_handler_of_somebody_else_is_left_alone():
    assert run("faulthandler")[:2] == (0, ["False False"])


@pytest.mark.slow
def test_an_abort_that_nobody_explains_is_one_all_the_same():
    code, said, seconds = run("nobody")
    assert (code, said) == (-signal.SIGABRT, ["True False"])
    assert seconds > 5
