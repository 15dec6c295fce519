"""Workers that are lost where there is no launcher that would see it: the others end at once, and say which it was."""

from __future__ import annotations

import re
import signal
import time

import pytest

from cluster.jobs import job

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(100)]

# Long after the end of each wait below: whoever is named by then was not found missing by JAX's heartbeat.
HEARTBEAT_SECONDS = 120
WAIT_SECONDS = 40


def told_by(started, worker: int) -> str:
    assert started.workers[worker].wait(WAIT_SECONDS) == 1, started.output(worker)
    return started.output(worker)


@pytest.mark.parametrize(
    ("devices", "victim", "doing"),
    [
        ([1, 1, 1], 1, "step"),
        pytest.param([1, 1], 0, "step", marks=pytest.mark.slow),
        pytest.param([1, 1], 0, "alone", marks=pytest.mark.slow),
        pytest.param([1, 1], 1, "alone", marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_is_named_by_all_others_at_once(tmp_path, devices, victim, doing):
    with job("losing", devices, tmp_path, doing, MIRRORED_HEARTBEAT_SECONDS=str(HEARTBEAT_SECONDS)) as started:
        others = [worker for worker in range(len(devices)) if worker != victim]
        for worker in others:
            started.wait_for(worker, "READY")
        time.sleep(0.3)
        process = started.workers[victim].pid
        started.workers[victim].send_signal(signal.SIGKILL)
        for worker in others:
            last = told_by(started, worker)[-1200:]
            assert re.search(
                rf"AbsentWorkerError: .*: worker {victim} \(.*, process {process}\) was lost without an exit report .*"
                r"; it was last seen \d+\.\d s ago, at operation \d+: call step \(time \d+\) at losing.py:\d+ in "
                r"<module>\n"
                r"  rule: .*\n  remedy: .*\n",
                last,
            ), last


@pytest.mark.slow
def test_an_error_of_one_worker_is_the_others_reason(tmp_path):
    with job("losing", [1, 1], tmp_path, "fails", MIRRORED_HEARTBEAT_SECONDS=str(HEARTBEAT_SECONDS)) as started:
        assert "ValueError: the loss is not a number" in told_by(started, 1)
        told = told_by(started, 0)
    assert re.search(r"AbsentWorkerError: .*: worker 1 \(.*\) ended by ValueError: the loss is not a number\n", told)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_worker_is_named_once_jax_gives_it_up(tmp_path, victim):
    with job("losing", [1, 1], tmp_path, "step", MIRRORED_HEARTBEAT_SECONDS="4") as started:
        started.wait_for(1 - victim, "READY")
        started.workers[victim].send_signal(signal.SIGSTOP)
        told = told_by(started, 1 - victim)
    assert f"mirrored: worker {victim} (" in told
    assert re.search(
        rf"AbsentWorkerError: .*: worker {victim} \(.*\) was lost without an exit report .* last seen \d", told
    )
