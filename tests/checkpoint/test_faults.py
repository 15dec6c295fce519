"""Damage, full disks and kills: a checkpoint is whole or not at all, and a restore changes everything or nothing."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader, checkpoints_in
from mirrored.errors import CheckpointError, DamagedCheckpointError, MissingExtraError

TRAIN = """
import sys
import numpy as np
import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

v = mr.Variable(np.zeros(200_000, np.float32))
checkpoint = Checkpoint(v=v, step=0)
manager = CheckpointManager(checkpoint, sys.argv[1], max_to_keep=2)
start = manager.restore_latest() or 0
assert checkpoint.step == start and (v.numpy() == start).all(), (start, checkpoint.step, v.numpy()[:3])
print("start", start, flush=True)
for step in range(start + 1, int(sys.argv[2]) + 1):
    v.assign_add(np.ones(200_000, np.float32))
    checkpoint.step = step
    manager.save(step)
    print("saved", step, flush=True)
"""


def program(text):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    return lambda *arguments: subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def saved(tmp_path):
    values = {"a": np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32), "b": np.arange(3)}
    return Checkpoint(values=values, step=3).write(tmp_path / "c"), values


def files_of(path):
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)


def target():
    return Checkpoint(values={"a": np.zeros((40, 50), np.float32), "b": np.zeros(3, int)}, step=0)


def test_every_flipped_byte_is_noticed_and_changes_nothing(saved):
    path, _ = saved
    random_bytes = random.Random(0)
    for file in files_of(path):
        with open(file, "rb") as opened:
            whole = opened.read()
        for _ in range(3):
            at = random_bytes.randrange(len(whole))
            with open(file, "wb") as opened:
                opened.write(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
            checkpoint = target()
            with pytest.raises(DamagedCheckpointError, match="nothing was restored"):
                checkpoint.restore(path)
            assert not checkpoint.values["a"].any()
            assert checkpoint.step == 0
        with open(file, "wb") as opened:
            opened.write(whole)
    target().restore(path).assert_consumed()


def test_every_truncated_or_missing_file_is_noticed(saved, tmp_path):
    path, _ = saved
    for number, file in enumerate(files_of(path)):
        copy = shutil.copytree(path, tmp_path / f"copy{number}")
        damaged = os.path.join(copy, os.path.relpath(file, path))
        os.truncate(damaged, os.path.getsize(damaged) // 2)
        with pytest.raises(DamagedCheckpointError, match="checksum|is not what was written"):
            target().restore(copy)
        os.remove(damaged)
        if not damaged.endswith("mirrored.json"):
            with pytest.raises(DamagedCheckpointError, match="is missing"):
                target().restore(copy)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "mirrored.json").write_text('{"format": "something else"}')
    with pytest.raises(DamagedCheckpointError, match="is not what was written"):
        target().restore(tmp_path)
    (tmp_path / "mirrored.json").write_text('{"version": 99, "contents": {}, "checksum": ""}')
    with pytest.raises(DamagedCheckpointError, match="has version 99"):
        target().restore(tmp_path)


# Orbax leaves futures behind whose loop is gone when a write fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_full_disk_leaves_the_previous_one(tmp_path):
    v = mr.Variable(jnp.zeros(100_000))
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    manager.save(1)
    manager.wait()
    v.assign(np.random.default_rng(0).normal(size=100_000).astype(np.float32))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        manager.save(2)
        with pytest.raises(CheckpointError, match="ckpt-2 could not be written"):
            manager.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["ckpt-1"]
    assert manager.restore_latest() == 1
    assert not v.numpy().any()
    manager.save(3)
    assert [os.path.basename(one) for one in manager.checkpoints] == ["ckpt-1", "ckpt-3"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_replacement_leaves_the_old_one(tmp_path):
    v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    checkpoint.write(tmp_path / "c")
    v.assign(2.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        with pytest.raises(CheckpointError, match="could not be written"):
            checkpoint.write(tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    checkpoint.read(tmp_path / "c").assert_consumed()
    assert v.numpy() == 1.0


def test_an_error_in_the_background_is_told_at_the_next_save(tmp_path):
    (tmp_path / "file").write_text("")
    manager = CheckpointManager(Checkpoint(v=mr.Variable(1.0)), tmp_path / "file")
    manager.save(1)
    with pytest.raises(CheckpointError, match="ckpt-1 could not be written"):
        manager.save(2)


def test_killed_while_a_checkpoint_is_replaced(tmp_path):
    v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    checkpoint.write(tmp_path / "c-1")
    os.rename(tmp_path / "c-1", tmp_path / "c-1.replaced")  # what such a kill leaves
    v.assign(0.0)
    checkpoint.restore(tmp_path / "c-1").assert_consumed()
    assert v.numpy() == 1.0
    assert checkpoints_in(tmp_path) == [str(tmp_path / "c-1")]
    checkpoint.write(tmp_path / "c-1")
    assert os.listdir(tmp_path) == ["c-1"]


def test_what_a_kill_left_unfinished_is_no_checkpoint_and_is_removed(tmp_path):
    v = mr.Variable(1.0)
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    manager.save(1)
    manager.wait()
    shutil.copytree(tmp_path / "ckpt-1", tmp_path / "ckpt-2.unfinished")
    shutil.copytree(tmp_path / "ckpt-1", tmp_path / "other.unfinished")
    assert manager.restore_latest() == 1
    manager.save(3)
    manager.wait()
    assert sorted(os.listdir(tmp_path)) == ["ckpt-1", "ckpt-3", "other.unfinished"]


@pytest.mark.chaos
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kill_at_random_moments_loses_at_most_the_newest(tmp_path):
    moments = random.Random(1)
    start, last = program(TRAIN), 0
    for _ in range(4):
        process = start(tmp_path, 1_000_000)
        assert process.stdout is not None
        begun = int(process.stdout.readline().split()[1])
        assert begun >= last - 1
        for _ in range(moments.randrange(3, 9)):
            last = int(process.stdout.readline().split()[1])
        time.sleep(moments.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
        last = int(rest[-1]) if rest and rest[-1].isdecimal() else last
        newest = checkpoints_in(tmp_path)[-1]
        reader = CheckpointReader(newest)
        assert reader.read("step") >= last - 2
        assert (reader.read("v") == reader.read("step")).all()
    assert len(checkpoints_in(tmp_path)) <= 3


@pytest.mark.multiprocess
def test_a_program_that_ends_finishes_its_last_checkpoint(tmp_path):
    process = program(TRAIN)(tmp_path, 3)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "saved 3" in output
    assert "Traceback" not in errors
    assert os.path.basename(checkpoints_in(tmp_path)[-1]) == "ckpt-3"
    assert CheckpointReader(tmp_path).read("step") == 3


@pytest.mark.multiprocess
def test_without_orbax_the_error_names_the_extra(tmp_path):
    process = program(
        """
        import sys
        sys.modules["orbax"] = None
        import mirrored as mr
        from mirrored.checkpoint import Checkpoint
        try:
            Checkpoint(v=mr.Variable(1.0)).save(sys.argv[1] + "/c")
        except mr.errors.MirroredError as error:
            print(type(error).__name__, type(error.__cause__).__name__, error)
        """
    )(tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "mirrored[checkpoint]" in output
    assert MissingExtraError.__name__ in output
    assert os.listdir(tmp_path) == []
