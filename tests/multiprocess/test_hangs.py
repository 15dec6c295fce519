"""Workers that cannot come together: each case ends, quickly, with a message that names the worker."""

from __future__ import annotations

import re
import signal
import time

import pytest

from launcher.jobs import PRELUDE, Ran, environment, written
from mirrored.launcher import Job

__all__ = ["environment"]  # a fixture for every test here
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]

TRAINING = """
import jax, jax.numpy as jnp
import mirrored as mr
how = sys.argv[1]
if how == "flags" and rank == 1:
    jax.config.update("jax_enable_x64", True)
strategy = mr.MultiWorkerMirroredStrategy()
factor = 2.0 if how == "program" and rank == 1 else 1.0

@mr.function
def step():
    def replica_step():
        return mr.get_replica_context().all_reduce("SUM", jnp.float32(factor))
    return strategy.reduce("SUM", strategy.run(replica_step), axis=None)

@mr.function
def evaluate():
    def replica_step():
        return mr.get_replica_context().all_reduce("SUM", jnp.ones(1000)).sum()
    return strategy.reduce("SUM", strategy.run(replica_step), axis=None)

def train(steps):
    for _ in range(steps):
        float(step())  # TRAINS

def eager_run():
    return strategy.run(lambda: mr.get_replica_context().all_reduce("SUM", 1.0))

for _ in range(3):
    float(step())
note(f"ready{rank}")
if how == "one step more" and rank == 0:
    float(step())
if how.startswith("extra"):
    train(20)
    if rank == 0: step()  # ALONE
    if how == "extra, then another": evaluate()
    if how == "extra, then eager": eager_run()
    if how == "extra, then more": train(100); evaluate()
    if how == "extra, then ends": train(100)
if how == "chief alone" and rank == 0:
    eager_run()
if how == "late":
    if rank == 1: time.sleep(50)
    float(step())
if how == "apart":
    eager_run() if rank == 0 else step()
if how.startswith("stop"):
    if rank == int(how[-1]): os.kill(os.getpid(), signal.SIGSTOP)
    float(step())
if how == "error":
    if rank == 1: raise ValueError("the loss is not a number")
    float(step())
print("ended")
"""


def run(tmp_path, how: str, *, seconds: float = 25) -> Ran:
    start = time.monotonic()
    ran = Ran(Job(program=written(tmp_path, TRAINING), arguments=(how,), workers=2))
    assert ran.ended_at - start < seconds
    return ran


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    monkeypatch.setenv("MIRRORED_WATCHDOG_SECONDS", "2")
    monkeypatch.setenv("MIRRORED_HEARTBEAT_SECONDS", "10")


def last_line(ran: Ran) -> str:
    return ran.errors.splitlines()[-1]


@pytest.mark.long
def test_a_worker_that_does_not_come_is_named_with_what_all_are_doing(tmp_path):
    ran = run(tmp_path, "late")
    assert ran.code == 1
    assert re.search(
        r"worker 0 \(.*\) has arrived at operation \d+, call step \(time 4\) at train.py:\d+ in <module>, and is in",
        ran.errors,
    )
    assert re.search(r"worker 1 \(.*\) has NOT arrived at operation \d+: .* call step \(time 3\)", ran.errors)
    assert "MIRRORED_WATCHDOG_SECONDS=2" in ran.errors
    assert "[worker 0] Thread stacks of worker 0:" in ran.errors
    assert "[worker 1]     if rank == 1: time.sleep(50)" in ran.errors, "the one that is late tells where it is"
    assert "cannot continue: no worker has made progress" in last_line(ran)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "one step more",
            r"worker 1 \(.*\) has ended after operation \d+ \(call step \(time 3\) at train.py:\d+ in <module>\), and "
            r"worker 0 has reached operation \d+: call step \(time 4\) at train.py:\d+ in <module>\.",
        ),
        ("chief alone", r"worker 1 \(.*\) has ended .* and worker 0 has reached operation \d+: Strategy.run: run "),
        ("apart", r"operation \d+ of worker 0 is: Strategy.run: run .*; that of worker 1 is: call step \(time 4\) at"),
    ],
)
def test_a_run_or_step_of_some_alone_is_named(tmp_path, monkeypatch, how, message):
    monkeypatch.setenv("MIRRORED_WATCHDOG_SECONDS", "30")  # certain cases are not waited for
    ran = run(tmp_path, how, seconds=20)
    assert ran.code == 1
    assert re.search(message, last_line(ran)), ran.errors


def line_of(comment: str) -> int:
    program = (PRELUDE + TRAINING).splitlines()
    return next(number for number, line in enumerate(program, 1) if line.endswith(f"# {comment}"))


@pytest.mark.parametrize(
    "then",
    [
        "another",
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("more", marks=pytest.mark.slow),
        pytest.param("ends", marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_an_extra_call_of_one_worker_is_named_with_its_line_wherever_the_others_are(tmp_path, monkeypatch, then):
    monkeypatch.setenv("MIRRORED_WATCHDOG_SECONDS", "30")
    ran = run(tmp_path, f"extra, then {then}", seconds=20)
    assert ran.code == 1
    assert re.search(
        rf"orker 0 \(.*\) has executed call step at train.py:{line_of('ALONE')} in <module> \(once; the first is its "
        r"operation \d+\), and worker 1 has not",
        last_line(ran),
    ), ran.errors
    assert "cannot continue: " in last_line(ran)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("flags", "the setting jax_enable_x64 is 'False' on worker 0 (127.0.0.1:"),
        ("program", "step: the program on worker 1 ("),
    ],
)
def test_another_version_of_the_program_is_named(tmp_path, how, message):
    ran = run(tmp_path, how)
    assert ran.code == 1
    assert message in ran.errors
    assert "on worker 1" in last_line(ran)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_worker_is_named(tmp_path, monkeypatch, stopped):
    monkeypatch.setenv("MIRRORED_WATCHDOG_SECONDS", "600")
    monkeypatch.setenv("MIRRORED_HEARTBEAT_SECONDS", "4")
    ran = run(tmp_path, f"stop{stopped}")
    assert ran.code == 128 + signal.SIGABRT, "JAX's runtime ends the others"
    assert last_line(ran).startswith(f"[mirrored] worker {1 - stopped} was killed by SIGABRT (worker {stopped} (")
    assert "has sent no heartbeat for 3 s: its process is stopped" in last_line(ran)


@pytest.mark.long
def test_an_error_of_one_comes_first_and_ends_all(tmp_path):
    ran = run(tmp_path, "error")
    assert ran.code == 1
    assert "ended" not in ran.out
    # XLA and gRPC log what they please in between.
    errors = [line for line in ran.errors.splitlines() if "Traceback" in line or "the loss is" in line]
    assert errors[0] == "[worker 1] Traceback (most recent call last):"
    assert "[worker 1] ValueError: the loss is not a number" in errors
    assert errors[-1] == "[mirrored] worker 1 ended by ValueError: the loss is not a number"


@pytest.mark.long
def test_a_coordinators_port_that_is_taken_is_named(tmp_path, monkeypatch):
    program = """
        import socket, json
        cluster = json.loads(os.environ["TF_CONFIG"])
        if rank == 0:
            taken = socket.create_server(("", int(cluster["cluster"]["worker"][0].rpartition(":")[2])))
        import mirrored as mr
        mr.MultiWorkerMirroredStrategy()
        """
    ran = Ran(Job(program=written(tmp_path, program), workers=2))
    assert ran.code == 1
    assert re.search(r"worker 0 ended by .*RendezvousError: .*port \d+ of this machine is taken", last_line(ran))
