"""Elastic jobs of real processes: workers are killed, stopped and replaced, and the result is that without failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import jax
import pytest

import mirrored as mr

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PRELUDE = """
import json, os, sys, time
import numpy as np
import mirrored as mr
from mirrored import elastic
from mirrored.checkpoint import Checkpoint

def build(strategy):
    with strategy.scope():
        w = mr.Variable(np.linspace(-1, 1, 8, dtype=np.float32)[:, None], name="w")
        metric = mr.Variable(np.float32(0), name="metric", trainable=False,
                             synchronization=mr.VariableSynchronization.ON_READ,
                             aggregation=mr.VariableAggregation.SUM)
    x = np.random.default_rng(0).normal(size=(48, 8)).astype(np.float32)
    dataset = mr.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(48, seed=1).repeat().batch(12)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    checkpoint = Checkpoint(w=w, metric=metric, dataset=iterator, step=0)

    @mr.function
    def step(x, y):
        def replica(x, y):
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss((x @ w.read_value() - y) ** 2)
            (gradient,) = tape.gradient(loss, [w])
            total = mr.get_replica_context().all_reduce("SUM", gradient)
            w.assign_sub(0.05 * total)
            metric.assign_add(loss)
        strategy.run(replica, (x, y))
    return checkpoint, iterator, step

def result(checkpoint):
    return json.dumps([checkpoint.w.numpy().tobytes().hex(), float(checkpoint.metric.read_value()).hex()])
"""

TRAIN = """
@elastic.run(snapshot_every=5)
def train(session, steps):
    checkpoint, iterator, step = build(mr.MultiWorkerMirroredStrategy(num_replicas=6, deterministic=True))
    session.resume(checkpoint)
    while checkpoint.step < steps:
        step(*next(iterator))
        checkpoint.step += 1
        print("step", checkpoint.step, session.epoch, session.num_workers, flush=True)
        session.commit()
        time.sleep(0.05 if session.epoch < LAST else 0)
    print("result", result(checkpoint), flush=True)

train(40)
"""


class Job:
    """A job of `mirrored run --elastic`, with its output so far."""

    def __init__(self, folder: Path, program: str, *options: str, workers: int = 3) -> None:
        self.folder = folder
        path = folder / "train.py"
        path.write_text(PRELUDE + textwrap.dedent(program))
        command = [sys.executable, "-m", "mirrored.cli", "run", "--elastic", "--workers", str(workers), *options]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MIRRORED_HEARTBEAT_SECONDS": "5",
        }
        environment.pop("MIRRORED_VIRTUAL_DEVICES", None)
        self.process = subprocess.Popen(
            [*command, str(path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)
        self.process.stdout.close()

    def read_until(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """Waits for a line with a pattern."""
        end = time.monotonic() + seconds
        while True:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            assert time.monotonic() < end, "".join(self.lines[-40:])
            assert self.process.poll() is None, "".join(self.lines[-40:])
            time.sleep(0.01)

    def pid(self, index: int) -> int:
        """The newest process of a worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        of_worker = [
            int(pid)
            for pid in children
            if f"MIRRORED_ELASTIC={index}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ]
        return of_worker[-1]

    def end(self) -> int:
        """Waits for the end, and returns the exit status."""
        try:
            return self.process.wait(200)
        finally:
            self.process.kill()
            self._reader.join(10)

    def results(self) -> set[str]:
        return {line.partition("result ")[2] for line in self.lines if " result " in line}


def undisturbed(steps: int) -> str:
    """The result of the same training on two devices of this process."""
    names: dict[str, Any] = {}
    exec(PRELUDE, names)
    strategy = mr.MirroredStrategy(jax.devices()[:2], num_replicas=6, deterministic=True)
    checkpoint, iterator, step = names["build"](strategy)
    for _ in range(steps):
        step(*next(iterator))
    result: str = names["result"](checkpoint)
    return result


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(program, *options, **more):
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Job(folder, program, *options, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()
        job.process.wait(10)


@pytest.mark.long
def test_workers_are_killed_and_replaced_and_the_result_has_the_bits_of_an_undisturbed_run(start):
    expected = undisturbed(40)
    # All three workers train again in the third epoch at the latest, and only then the job may run to its end.
    job = start("LAST = 3" + TRAIN)
    job.read_until(r"\[worker 0\] step 7 1 3")
    survivors = {job.pid(1), job.pid(2)}
    os.kill(job.pid(0), signal.SIGKILL)
    job.read_until(r"worker 0 was killed by SIGKILL.*workers 1, 2 continue after step")
    job.read_until(r"step \d+ 2 2")
    job.read_until(r"worker 0 joins: workers 0, 1, 2 continue after step|result")
    assert survivors <= {job.pid(1), job.pid(2)}, "no process has restarted"
    assert job.end() == 0
    assert job.results() == {expected + "\n"}


@pytest.mark.long
def test_an_exception_of_the_program_ends_the_job_and_is_not_retried(start):
    job = start(
        """
        @elastic.run
        def train(session):
            print("called", flush=True)
            checkpoint, iterator, step = build(mr.MultiWorkerMirroredStrategy(num_replicas=6, deterministic=True))
            session.resume(checkpoint)
            step(*next(iterator))
            raise ValueError("a bug")

        train()
        """,
        workers=2,
    )
    assert job.end() == 1
    text = "".join(job.lines)
    assert "ValueError: a bug" in text
    assert text.count("called") == 2, "once per worker"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.long
def test_all_workers_are_killed_at_once_and_replacements_train(start, workers):
    job = start("LAST = 2" + TRAIN, workers=workers)
    job.read_until(r"step 7 1")
    for pid in [job.pid(index) for index in range(workers)]:
        os.kill(pid, signal.SIGKILL)
    job.read_until(r"was killed by SIGKILL.*continues? from the beginning")
    assert job.end() == 0
    assert job.results() == {undisturbed(40) + "\n"}


@pytest.mark.slow
def test_a_function_that_returns_early_on_a_worker_is_named(start):
    early = 'if os.environ["MIRRORED_ELASTIC"] == "1" and checkpoint.step == 7:\n            return\n        step('
    job = start("LAST = 2" + TRAIN.replace("step(", early, 1).replace("train(40)", "train(400)"), workers=2)
    job.read_until(r"the training function has returned on worker 1, and not yet on worker 0")


@pytest.mark.slow
def test_a_stopped_worker_is_excluded_and_killed(start):
    job = start("LAST = 9" + TRAIN.replace("train(40)", "train(400)"), "--min-workers", "1", workers=2)
    job.read_until(r"\[worker 0\] step 7 1 2")
    stopped = job.pid(1)
    os.kill(stopped, signal.SIGSTOP)
    job.read_until(r"worker 1 has sent no heartbeat for 5 s and was killed: worker 0 continues")
    job.read_until(r"step \d+ 2 1")
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)


def test_options_that_contradict_each_other_are_refused():
    from mirrored.errors import ArgumentError
    from mirrored.launcher import Job as Description

    for wrong in (
        {"elastic": True, "nodes": 2, "coordinator": "a:1"},
        {"elastic": False, "min_workers": 2, "workers": 2},
        {"elastic": True, "workers": 2, "min_workers": 3},
        {"elastic": True, "workers": 2, "max_workers": 1},
    ):
        with pytest.raises(ArgumentError, match="workers|elastic"):
            Description(program=__file__, **wrong).check()


@pytest.mark.long
def test_a_replacement_that_differs_is_refused_and_the_others_go_on(start):
    differs = """
    from pathlib import Path

    if os.environ["MIRRORED_RESTART"] != "0":
        os.environ["NPROC"] = "17"

    def wait(step):
        while step == 30 and not Path(__file__).with_name("go").exists():
            time.sleep(0.01)
        time.sleep(0.05 if step < 20 else 0)
    """
    job = start(
        textwrap.dedent(differs)
        + TRAIN.replace("time.sleep(0.05 if session.epoch < LAST else 0)", "wait(checkpoint.step)"),
        workers=2,
    )
    job.read_until(r"\[worker 0\] step 7 1 2")
    os.kill(job.pid(1), signal.SIGKILL)
    job.read_until(r"worker 1 is refused: the number of XLA's threads is '\d+' on the workers of the job, and '17' on")
    (job.folder / "go").touch()
    assert job.end() == 0
    assert job.results() == {undisturbed(40) + "\n"}
    assert not any("worker 1 joins" in line for line in job.lines)
