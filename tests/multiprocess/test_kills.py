"""Workers that are killed, told to end, or out of disk while they train: nothing is lost, and nobody hangs.

The long version, 30 kills over 300 steps, is tools/chaos.py.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import chaos
import chaos_program
import jax
import pytest

import mirrored as mr
from launcher.jobs import Ran, environment, written
from mirrored.checkpoint import checkpoints_in
from mirrored.launcher import Job

__all__ = ["environment"]  # a fixture for every test here
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]


def left_alone(folder: Path, steps: int) -> chaos.Run:
    """The same training in this process, with as many replicas: what the bits must be."""
    folder.mkdir()
    strategy = mr.MirroredStrategy(jax.devices()[:2], deterministic=True)
    chaos_program.train(folder, steps, strategy, 0)
    run = chaos.Run.__new__(chaos.Run)
    run.folder = folder
    return run


def started(folder: Path, *, steps: int, seconds_per_step: float = 0.1, restarts: int = 1) -> chaos.Run:
    return chaos.Run(folder, steps=steps, workers=2, seconds_per_step=seconds_per_step, restarts=restarts)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.long
def test_a_killed_worker_loses_nothing(tmp_path, victim):
    run = started(tmp_path / "killed", steps=13)
    try:
        # On a leash: on a busy machine it may end before it is killed. Checkpoints are written in the background.
        run.leash(9)
        assert chaos.wait_for(run, lambda: run.step >= 7 and run.newest_checkpoint() >= 5, 60)
        kill = chaos.Kill(victim, run.step, run.newest_checkpoint())
        os.kill(run.workers()[victim], signal.SIGKILL)
        run.leash(None)
        expected = left_alone(tmp_path / "left alone", 13)
        assert run.wait(50) == 0
    finally:
        run.close()
    kill.resumed = run.resumed[-1]
    assert kill.newest >= 5
    assert len(run.resumed) == 2
    assert chaos.check(expected, run, [kill], steps=13) == []
    told = next(line for line in run.lines if line.startswith("[mirrored]"))
    assert told == f"[mirrored] worker {victim} was killed by SIGKILL; restarting all 2 workers (restart 1 of 1)\n"


@pytest.mark.chaos
@pytest.mark.slow
def test_kills_while_a_checkpoint_is_written_leave_the_one_before(tmp_path):
    run = started(tmp_path / "killed", steps=40, restarts=10, seconds_per_step=0.02)
    kills = []
    try:
        for mark in (9, 19, 29):
            run.leash(mark + 8)  # which holds a step at which it saves
            assert chaos.wait_for(run, lambda mark=mark: run.step >= mark, 60)
            unfinished = run.folder / "checkpoints"
            assert chaos.wait_for(run, lambda folder=unfinished: any(folder.glob("*.unfinished")), 20)
            kill = chaos.Kill(0, run.step, run.newest_checkpoint())
            starts = len(run.resumed)
            os.kill(run.workers()[0], signal.SIGKILL)
            assert chaos.wait_for(run, lambda starts=starts: len(run.resumed) > starts, 60)
            kill.resumed = run.resumed[-1]
            kills.append(kill)
        run.leash(None)
        assert run.wait(60) == 0
    finally:
        run.close()
    assert chaos.check(left_alone(tmp_path / "left alone", 40), run, kills, steps=40) == []


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_many_kills_at_random_moments(tmp_path):
    run = started(tmp_path / "killed", steps=80, restarts=20, seconds_per_step=0.03)
    try:
        kills = chaos.torment(run, random.Random(5), steps=80, kills=6)
        assert run.wait(120) == 0, "".join(run.lines[-40:])
    finally:
        run.close()
    assert len(kills) == 6
    assert chaos.check(left_alone(tmp_path / "left alone", 80), run, kills, steps=80) == []


@pytest.mark.slow
def test_sigterm_saves_ends_well_and_the_next_start_goes_on(tmp_path):
    run = started(tmp_path / "first", steps=400)
    try:
        assert chaos.wait_for(run, lambda: run.step >= 8, 40)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(30) == 0, "".join(run.lines[-40:])
    finally:
        run.close()
    saved = run.newest_checkpoint()
    assert saved >= 8
    assert any("SIGTERM" in line for line in run.lines)
    os.rename(tmp_path / "first", tmp_path / "second")
    steps = saved + 5
    ran = Ran(Job(program=str(chaos.PROGRAM), arguments=(str(tmp_path / "second"), str(steps)), workers=2))
    assert ran.code == 0, ran.errors
    assert f"[worker 0] resumed {saved}" in ran.out
    run.folder = tmp_path / "second"
    assert chaos.check(left_alone(tmp_path / "left alone", steps), run, [], steps=steps) == []


@pytest.mark.slow
def test_a_full_disk_is_told_with_the_worker_and_leaves_the_checkpoint_before(tmp_path):
    program = """
        import resource
        import numpy as np
        import mirrored as mr
        from mirrored.checkpoint import Checkpoint, CheckpointManager
        strategy = mr.MultiWorkerMirroredStrategy()
        with strategy.scope():
            v = mr.Variable(np.random.default_rng(0).normal(size=50_000).astype(np.float32))
        checkpoint = Checkpoint(v=v, step=0)
        manager = CheckpointManager(checkpoint, folder + "/checkpoints")
        start = manager.restore_latest()
        if start is not None:
            print("resumed", start)
            sys.exit(0)
        for step in range(1, 100):
            if step == 3:
                manager.wait()
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            checkpoint.step = step
            manager.save(step)
        """
    path = written(tmp_path, program)
    start = time.monotonic()
    ran = Ran(Job(program=path, workers=2))
    assert time.monotonic() - start < 30
    assert ran.code == 1
    assert re.search(r"\[mirrored\] worker \d ended by .*CheckpointError: .*ckpt-3 could not be written", ran.errors)
    assert [os.path.basename(one) for one in checkpoints_in(tmp_path / "checkpoints")][-1] == "ckpt-2"
    again = Ran(Job(program=path, workers=2))
    assert again.code == 0, again.errors
    assert sorted(again.out.splitlines()) == ["[worker 0] resumed 2", "[worker 1] resumed 2"]
