"""Two jobs and one folder: one writes, the error of the other names it, and a dead job does not block others."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager, latest_checkpoint, manager, series_lock, writing
from mirrored.checkpoint.series_lock import SeriesLock, claim, withdrawn_on_failure
from mirrored.errors import CheckpointError

# A job that has saved, with a forked child as a loader of data would have, and that lives until it is killed.
JOB = """
import os, sys, time
import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
manager = CheckpointManager(Checkpoint(v=mr.Variable(1.0)), sys.argv[1])
manager.save(1)
manager.wait()
child = os.fork()
if child == 0:
    time.sleep(300)
    os._exit(0)
print("saved", os.getpid(), child, flush=True)
time.sleep(300)
"""


@pytest.fixture
def other_job(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", JOB, str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    child = None
    try:
        assert process.stdout is not None
        _, _, child = process.stdout.readline().split()
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
        if child is not None:
            os.kill(int(child), signal.SIGKILL)


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


@pytest.mark.multiprocess
@pytest.mark.long
def test_another_job_is_named_and_a_killed_one_does_not_block(tmp_path, monkeypatch, other_job):
    monkeypatch.setattr(series_lock, "_PATIENCE_SECONDS", 0.2)
    v = mr.Variable(2.0)
    mine = CheckpointManager(Checkpoint(v=v), tmp_path)
    with pytest.raises(CheckpointError, match=rf"process {other_job.pid} on .* writes the .* ckpt of") as caught:
        mine.save(1)
    assert "another folder or name" in caught.value.remedy
    counting = Checkpoint(v=v)
    with pytest.raises(CheckpointError, match=f"process {other_job.pid}"):
        counting.save(tmp_path / "ckpt")
    assert int(counting.save_counter.numpy()) == 0
    assert mine.restore_latest() == 1, "others may read"
    assert v.numpy() == 1.0
    CheckpointManager(Checkpoint(v=v), tmp_path, checkpoint_name="other").save(1)
    Checkpoint(v=v).write(tmp_path / "ckpt-100")  # a name of its own, as in a search over parameters
    shutil.rmtree(tmp_path / "ckpt-100")
    other_job.kill()
    other_job.wait(10)
    v.assign(3.0)
    mine.save(2)
    assert mine.restore_latest() == 2
    assert v.numpy() == 3.0
    assert visible(tmp_path) == ["ckpt-1", "ckpt-2", "other-1"]


def test_the_lock_goes_with_the_manager(tmp_path):
    mine = CheckpointManager(Checkpoint(v=mr.Variable(1.0)), tmp_path)
    assert os.listdir(tmp_path) == []
    mine.save(1)
    mine.wait()
    assert sorted(os.listdir(tmp_path)) == [".ckpt.lock", "ckpt-1"]
    again = CheckpointManager(Checkpoint(v=mr.Variable(1.0)), tmp_path)
    again.save(2)
    again.wait()
    del mine
    assert ".ckpt.lock" in os.listdir(tmp_path), "both managers of this process have it"
    del again
    assert sorted(os.listdir(tmp_path)) == ["ckpt-1", "ckpt-2"]


def test_a_checkpoint_that_is_written_once_is_locked_while_it_is_written(tmp_path):
    checkpoint = Checkpoint(v=mr.Variable(1.0))
    checkpoint.write(tmp_path / "c")
    assert os.listdir(tmp_path) == ["c"]
    checkpoint.save(tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == [".c.lock", "c", "c-1"]


@pytest.mark.parametrize("how", ["locks", "no fcntl", "no locks there"])
def test_the_job_that_has_lost_the_folder_is_told_who_has_it(tmp_path, monkeypatch, how):
    """A removed lock file of a running job; or a file system without locks, where the later job gets the folder."""
    monkeypatch.setattr(series_lock, "_PATIENCE_SECONDS", 0.2)
    if how == "no fcntl":
        monkeypatch.setattr(series_lock, "fcntl", None)
    elif how == "no locks there":

        def refuse(*_):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(series_lock.fcntl, "flock", refuse)
    path = tmp_path / ".c.lock"
    first = SeriesLock(path, "first")
    first.check("first")
    if how == "locks":
        path.unlink()
    second = SeriesLock(path, "second")
    with pytest.raises(CheckpointError, match=f"first: process {os.getpid()} on "):
        first.check("first")
    second.check("second")
    path.unlink()  # the folder was emptied: whoever comes next has it
    second.check("second")
    second.check("second")
    assert path.exists()


def test_a_folder_that_is_deleted_is_locked_again(tmp_path):
    folder = tmp_path / "run"
    lock = claim(folder, "c", "here")
    assert lock is not None
    shutil.rmtree(folder)
    again = claim(folder, "c", "here")
    assert again is not None
    assert os.listdir(folder) == [".c.lock"]
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert claim(link, "c", "here") is again, "another path to the same folder"
    assert claim(folder, "d", "here") is not again


def test_a_folder_that_cannot_be_locked_is_left_to_the_write(tmp_path):
    (tmp_path / "file").write_text("")
    assert claim(tmp_path / "file", "c", "here") is None


def test_writes_of_one_process_have_temporary_folders_of_their_own(tmp_path, monkeypatch):
    """The second job writes the same checkpoint and removes leftovers while the first write is in progress."""
    begun, gate, put = threading.Event(), threading.Event(), writing._put_in_place

    def slow(unfinished, directory):
        if not begun.is_set():
            begun.set()
            renaming.release()
            assert gate.wait(30)
            renaming.acquire()
        put(unfinished, directory)

    renaming = writing._renaming
    monkeypatch.setattr(writing, "_put_in_place", slow)
    first, second = (
        CheckpointManager(Checkpoint(v=mr.Variable(np.full(1000, value, np.float32))), tmp_path) for value in (1.0, 2.0)
    )
    first.save(1)
    assert begun.wait(30)
    second.save(1)
    second.wait()
    gate.set()
    first.wait()
    v = mr.Variable(np.zeros(1000, np.float32))
    Checkpoint(v=v).restore(latest_checkpoint(tmp_path)).assert_consumed()
    assert set(v.numpy()) == {1.0}
    assert visible(tmp_path) == ["ckpt-1"]


def test_what_is_left_of_this_checkpoint_is_removed_and_of_others_is_not(tmp_path):
    for name in ("c.unfinished", "c.0123abcd.unfinished", "d.0123abcd.unfinished", "mine.unfinished"):
        (tmp_path / name).mkdir()
    Checkpoint(v=mr.Variable(1.0)).write(tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == ["c", "d.0123abcd.unfinished", "mine.unfinished"]


def test_a_checkpoint_that_goes_while_it_is_restored_is_passed_over(tmp_path, monkeypatch):
    """An evaluation job runs beside a training job that keeps one checkpoint."""
    v = mr.Variable(0.0)
    training = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=1)
    v.assign(1.0)
    training.save(1)
    training.wait()
    found = manager.CheckpointManager._found
    looked = []

    def late(self, called):
        paths = found(self, called)
        if not looked:
            v.assign(2.0)
            training.save(2)
            training.wait()
        looked.append(paths)
        return paths

    monkeypatch.setattr(manager.CheckpointManager, "_found", late)
    w = mr.Variable(0.0)
    assert CheckpointManager(Checkpoint(v=w), tmp_path).restore_latest() == 2
    assert w.numpy() == 2.0
    assert len(looked) == 2


@pytest.mark.parametrize("kind", ["managers", "checkpoints"])
def test_two_checkpoints_that_take_turns_in_one_folder_are_refused(tmp_path, kind):
    """Both count from 1: each would replace the other's checkpoints."""
    v, u = mr.Variable(1.0), mr.Variable(2.0)
    first, second = Checkpoint(v=v), Checkpoint(v=u)
    saves = [
        CheckpointManager(one, tmp_path).save if kind == "managers" else lambda one=one: one.save(tmp_path / "ckpt")
        for one in (first, second)
    ]
    saves[0](), saves[0](), saves[1]()
    counts = [int(one.save_counter.numpy()) for one in (first, second)]
    with pytest.raises(CheckpointError, match="another Checkpoint of this program") as caught:
        saves[0]()
    assert "one Checkpoint of all objects" in caught.value.remedy
    assert [int(one.save_counter.numpy()) for one in (first, second)] == counts
    saves[1]()
    restored = CheckpointManager(Checkpoint(v=v), tmp_path)
    assert restored.restore_latest() == 2
    assert v.numpy() == 2.0


def test_one_checkpoint_may_have_two_managers_and_a_single_checkpoint_several_writers(tmp_path):
    first, second = Checkpoint(v=mr.Variable(1.0)), Checkpoint(v=mr.Variable(2.0))
    managers = [CheckpointManager(first, tmp_path), CheckpointManager(first, tmp_path)]
    for number in range(4):
        managers[number % 2].save()
        managers[number % 2].wait()
        [first, second][number % 2].write(tmp_path / "one")
    assert len(managers[0].checkpoints) == 3


def test_a_failed_write_counts_as_none(tmp_path):
    first, second = Checkpoint(v=mr.Variable(1.0)), Checkpoint(v=mr.Variable(2.0))

    def written(checkpoint, fails=False):
        lock = claim(tmp_path, "ckpt", "Checkpoint.save", checkpoint)
        with contextlib.suppress(OSError), withdrawn_on_failure(lock, checkpoint):
            if fails:
                raise OSError
        return lock

    locks = [written(first), written(second, fails=True), written(first), written(second), written(second, fails=True)]
    assert all(lock is locks[0] for lock in locks)
    with pytest.raises(CheckpointError, match="another Checkpoint of this program"):
        written(first)  # the second one's write before its failed one has replaced the checkpoints
