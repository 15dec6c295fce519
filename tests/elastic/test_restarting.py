"""Elastic jobs that cannot continue in the surviving processes: all processes restart, and one line says so."""

from __future__ import annotations

import os
import signal

import pytest

import mirrored as mr
from elastic.test_recovery import TRAIN, undisturbed
from elastic.test_recovery import start as start  # a fixture
from mirrored.cluster import elastic_job

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

WITHOUT_FUNCTION = """
config = json.loads(os.environ["TF_CONFIG"])  # as programs for TensorFlow read it
folder = os.path.dirname(os.path.abspath(__file__))
checkpoint, iterator, step = build(mr.MultiWorkerMirroredStrategy(num_replicas=6, deterministic=True))
manager = mr.checkpoint.CheckpointManager(checkpoint, os.path.join(folder, "checkpoints"), save_interval_steps=5)
manager.restore_latest()
while checkpoint.step < 20:
    step(*next(iterator))
    checkpoint.step += 1
    print("step", checkpoint.step, os.environ["MIRRORED_RESTART"], os.getpid(), flush=True)
    manager.save(checkpoint.step)
    time.sleep(0.1 if os.environ["MIRRORED_RESTART"] == "0" else 0)
manager.wait()
print("result", result(checkpoint), flush=True)
"""


@pytest.mark.long
def test_a_program_without_an_elastic_function_restarts_from_the_newest_checkpoint(start):
    job = start(WITHOUT_FUNCTION, workers=2)
    job.read_until(r"\[mirrored\] the program has no function with mirrored.elastic.run: after a failure all workers")
    job.read_until(r"\[worker 1\] step 12 0")
    os.kill(job.pid(1), signal.SIGKILL)
    job.read_until(r"\[mirrored\] worker .*; restarting all 2 workers \(restart 1 of 5\)")
    assert job.end() == 0
    text = "".join(job.lines)
    assert text.count("no function with mirrored.elastic.run") == 1
    assert "step 1 1" not in text, "the second run begins at a checkpoint"
    assert job.results() == {undisturbed(20) + "\n"}


@pytest.mark.long
def test_the_restarts_of_a_program_without_an_elastic_function_are_limited(start):
    job = start("mr.MultiWorkerMirroredStrategy()\nsys.exit(3)", "--max-restarts", "1", workers=1)
    assert job.end() == 3
    assert "".join(job.lines).count("restarting the worker (restart 1 of 1)") == 1


def test_a_strategy_outside_of_the_elastic_function_of_the_program_is_refused(monkeypatch):
    monkeypatch.setenv("MIRRORED_ELASTIC", "0")
    monkeypatch.setattr(elastic_job._Program, "is_elastic", True)
    with pytest.raises(mr.errors.ContextError, match=r"the function that mirrored\.elastic\.run decorates"):
        mr.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize("victims", [[0], pytest.param([0, 1], marks=pytest.mark.slow)])
@pytest.mark.long
def test_processes_restart_from_the_copy_in_shared_memory(start, monkeypatch, victims):
    monkeypatch.setenv("MIRRORED_ELASTIC_RECOVERY", "restart")
    job = start("LAST = 2" + TRAIN.replace("train(40)", "train(30)"), workers=2)
    job.read_until(r"\[worker 1\] step 14 1 2")
    before = {job.pid(0), job.pid(1)}
    for index in victims:
        os.kill(job.pid(index), signal.SIGKILL)
    said = job.read_until(
        r"worker \d (was killed by SIGKILL)?.*: workers 0, 1 have restarted and continue from the copy in shared "
        r"memory after step (?P<step>\d+) \(epoch 2, [\d.]+ s; MIRRORED_ELASTIC_RECOVERY=restart\)"
    )
    copied = int(said["step"])
    assert copied >= 10
    assert job.end() == 0
    text = "".join(job.lines)
    assert text.count("have restarted") == 1
    assert len(before) == 2
    assert f"step {copied + 1} 2 2" in text, "the steps since the copy are executed again, no others"
    assert f"step {copied} 2 2" not in text
    assert job.results() == {undisturbed(30) + "\n"}
