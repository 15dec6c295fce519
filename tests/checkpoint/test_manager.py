"""`CheckpointManager`: steps, intervals, retention, and the newest checkpoint."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import (
    Checkpoint,
    CheckpointManager,
    CheckpointReader,
    checkpoints_in,
    latest_checkpoint,
    writing,
)
from mirrored.errors import ArgumentError, ArgumentTypeError


def names(manager):
    return [os.path.basename(path) for path in manager.checkpoints]


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


@pytest.fixture
def v():
    return mr.Variable(0.0)


def test_nothing_to_restore_yet(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path / "new")
    assert manager.restore_latest() is None
    assert manager.latest_checkpoint is None
    assert manager.checkpoints == []
    assert latest_checkpoint(tmp_path / "new") is None


def test_keeps_the_newest(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=2)
    for step in range(1, 6):
        v.assign(float(step))
        assert manager.save(step) == str(tmp_path / f"ckpt-{step}")
    assert names(manager) == ["ckpt-4", "ckpt-5"]
    assert visible(tmp_path) == ["ckpt-4", "ckpt-5"]
    v.assign(-1.0)
    assert manager.restore_latest() == 5
    assert v.numpy() == 5.0


@pytest.mark.parametrize("step", [1.5, 2.0, True, -1, "3", np.float32(1), np.arange(2)])
def test_steps_that_are_not_whole_numbers_are_refused(tmp_path, v, step):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    manager.save(1)
    v.assign(7.0)
    with pytest.raises(ArgumentError, match="an integer of at least 0"):
        manager.save(step)
    assert names(manager) == ["ckpt-1"]
    assert manager.restore_latest() == 1
    assert v.numpy() != 7.0


def test_steps_may_be_integers_of_any_kind(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    for step in (np.int64(1), jnp.int32(2), mr.Variable(3)):
        manager.save(step)
    assert names(manager) == ["ckpt-1", "ckpt-2", "ckpt-3"]


def test_keeps_all(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=None)
    for step in range(5):
        manager.save(step)
    assert len(manager.checkpoints) == 5


def test_interval(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, save_interval_steps=3)
    saved = [step for step in range(1, 8) if manager.save(step) is not None]
    assert saved == [3, 6]
    assert manager.save(7, force=True) is not None
    assert names(manager) == ["ckpt-3", "ckpt-6", "ckpt-7"]


def test_interval_without_steps_counts_the_calls(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, save_interval_steps=3)
    saved = [call for call in range(1, 8) if manager.save() is not None]
    assert saved == [3, 6]
    assert manager.save(force=True) is not None
    assert names(manager) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert [manager.save() is not None for _ in range(3)] == [False, False, True]


def test_goes_on_in_another_process(tmp_path, v):
    first = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=2)
    for step in (1, 2):
        first.save(step)
    second = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=2)
    assert second.restore_latest() == 2
    second.save(3)
    assert names(second) == ["ckpt-2", "ckpt-3"]


def test_after_going_back_the_newest_is_what_was_written_last(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    for step in (10, 20, 30):
        v.assign(float(step))
        manager.save(step)
    manager.checkpoint.restore(manager.checkpoints[0])
    v.assign(15.0)
    manager.save(15)
    assert names(manager) == ["ckpt-20", "ckpt-30", "ckpt-15"]
    assert manager.restore_latest() == 15
    assert v.numpy() == 15.0


def test_a_step_again_replaces_it(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    for value in (1.0, 2.0):
        v.assign(value)
        manager.save(7)
    assert names(manager) == ["ckpt-7"]
    v.assign(0.0)
    assert manager.restore_latest() == 7
    assert v.numpy() == 2.0


def test_counts_by_itself_without_steps(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, checkpoint_name="model")
    assert [os.path.basename(manager.save()) for _ in range(3)] == ["model-1", "model-2", "model-3"]
    again = CheckpointManager(Checkpoint(v=v), tmp_path, checkpoint_name="model")
    assert again.restore_latest() == 3
    assert os.path.basename(again.save()) == "model-4"


def test_two_names_in_one_folder(tmp_path, v):
    a = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=1, checkpoint_name="a")
    b = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=1, checkpoint_name="b")
    for step in (1, 2):
        a.save(step)
        b.save(step)
    assert names(a) == ["a-2"]
    assert names(b) == ["b-2"]
    assert len(checkpoints_in(tmp_path)) == 2


def test_one_in_so_many_hours_is_kept_for_good(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=1, keep_every_n_hours=0.0)
    for step in (1, 2, 3):
        manager.save(step)
    assert names(manager) == ["ckpt-3"]
    assert visible(tmp_path) == ["ckpt-1", "ckpt-2", "ckpt-3"]


def hours_of_runs(folder, monkeypatch, runs, hours_of_run, forget=lambda: None):
    """Saves every 0.2 hours in several runs, and returns the hours after which the checkpoints on disk were saved."""
    now = [10**18]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    monkeypatch.setattr(
        "mirrored.checkpoint.manager.following", lambda path, manifest: dataclasses.replace(manifest, order=now[0])
    )
    checkpoint = Checkpoint(v=mr.Variable(0.0), step=0)
    for _ in range(runs):
        manager = CheckpointManager(checkpoint, folder, max_to_keep=2, keep_every_n_hours=1)
        for _ in range(round(hours_of_run / 0.2)):
            now[0] += int(0.2 * 3600e9)
            checkpoint.step += 1
            manager.save(checkpoint.step)
            manager.wait()
        forget()
    return sorted(round(int(name.rpartition("-")[2]) * 0.2, 1) for name in visible(folder))


@pytest.mark.first(1)
@pytest.mark.parametrize(("runs", "hours_of_run"), [(1, 4.0), (5, 0.8), (10, 0.4)])
def test_the_hours_of_kept_checkpoints_go_on_after_a_restart(tmp_path, monkeypatch, runs, hours_of_run):
    """A program that started again more often than once an hour kept none."""
    found = hours_of_runs(tmp_path, monkeypatch, runs, hours_of_run)
    assert found == [1.0, 2.0, 3.0, 3.8, 4.0]


@pytest.mark.long
def test_the_hours_of_checkpoints_of_earlier_versions_go_on(tmp_path, monkeypatch):
    def forget():
        (tmp_path / ".ckpt-last-kept").unlink()

    assert hours_of_runs(tmp_path, monkeypatch, 3, 1.2, forget) == [2.0, 3.0, 3.4, 3.6]


@pytest.mark.long
def test_an_old_checkpoint_with_a_damaged_manifest_is_kept(tmp_path, v, caplog):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=1, keep_every_n_hours=1.0)
    manager.save(1)
    manager.wait()
    manifest = tmp_path / "ckpt-1" / "mirrored.json"
    manifest.write_text(manifest.read_text().replace("float32", "float31"))
    for step in (2, 3):
        manager.save(step)
        manager.wait()
    assert visible(tmp_path) == ["ckpt-1", "ckpt-3"]
    assert len([record for record in caplog.records if "which is damaged" in record.message]) == 1
    assert manager.restore_latest() == 3


def test_steps_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    import threading

    import mirrored.checkpoint.manager as module

    gate, write = threading.Event(), module.write

    def slow(path, manifest):
        assert gate.wait(30)
        write(path, manifest)

    monkeypatch.setattr(module, "write", slow)
    v = mr.Variable(np.zeros(10, np.float32))
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    manager.save(1)
    v.assign_add(np.ones(10, np.float32))
    assert visible(tmp_path) == []
    gate.set()
    assert manager.restore_latest() == 1
    assert v.numpy().sum() == 0


@pytest.mark.parametrize("options", [{"max_to_keep": 0}, {"save_interval_steps": 0}])
def test_numbers_below_one(tmp_path, v, options):
    with pytest.raises(ArgumentError, match="both must be at least 1"):
        CheckpointManager(Checkpoint(v=v), tmp_path, **options)


@pytest.mark.long
def test_checkpoints_of_another_thread_are_of_one_step_and_numbered_apart(tmp_path):
    variables = [mr.Variable(jnp.zeros(200)) for _ in range(8)]
    ended, errors = threading.Event(), []

    @mr.function
    def step():
        for variable in variables:
            variable.assign_add(jnp.ones(200))

    manager = CheckpointManager(Checkpoint(variables=variables), tmp_path, max_to_keep=3)

    def save():
        try:
            while not ended.is_set():
                manager.save()
        except BaseException as error:
            errors.append(error)

    savers = [threading.Thread(target=save) for _ in range(2)]
    for saver in savers:
        saver.start()
    while not errors and int(manager.checkpoint.save_counter.numpy()) < 6:
        step()
    ended.set()
    for saver in savers:
        saver.join()
    assert errors == []
    assert len(manager.checkpoints) == 3
    assert int(manager.checkpoint.save_counter.numpy()) == int(manager.latest_checkpoint.rpartition("-")[2])
    for path in manager.checkpoints:
        Checkpoint(variables=variables).restore(path)
        assert len({float(value) for variable in variables for value in variable.numpy()}) == 1


def test_a_relative_folder_stays_where_it_is_when_the_program_changes_its_working_directory(tmp_path, monkeypatch, v):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    manager = CheckpointManager(Checkpoint(v=v), "run")
    manager.save(1)
    monkeypatch.chdir(tmp_path / "b")
    v.assign(7.0)
    assert manager.restore_latest() == 1
    assert v.numpy() == 0.0
    assert manager.save(2) == str(tmp_path / "a" / "run" / "ckpt-2")
    manager.wait()
    assert (names(manager), manager.directory) == (["ckpt-1", "ckpt-2"], str(tmp_path / "a" / "run"))
    assert visible(tmp_path / "b") == []


def ten_minutes_ahead(checkpoint, step=None, take=Checkpoint.snapshot):
    manifest = take(checkpoint, step)
    return dataclasses.replace(manifest, order=manifest.order + 600 * 10**9)


@pytest.mark.first(1)
@pytest.mark.parametrize("max_to_keep", [1, 2])
def test_a_clock_behind_that_of_earlier_checkpoints_does_not_make_a_new_one_the_oldest(
    tmp_path, monkeypatch, v, max_to_keep
):
    with monkeypatch.context() as ahead:
        ahead.setattr(Checkpoint, "snapshot", ten_minutes_ahead)
        manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=max_to_keep)
        for step in (1, 2):
            manager.save(step)
        manager.wait()
    for step in (3, 4):
        v.assign(float(step))
        path = manager.save(step)
        assert (manager.latest_checkpoint, latest_checkpoint(tmp_path)) == (path, path)
        v.assign(-1.0)
        assert manager.restore_latest() == step
        assert v.numpy() == step
    assert names(manager) == ["ckpt-3", "ckpt-4"][-max_to_keep:]


def test_a_checkpoint_is_newer_than_those_of_a_clock_ahead(tmp_path, monkeypatch, v):
    with monkeypatch.context() as ahead:
        ahead.setattr(Checkpoint, "snapshot", ten_minutes_ahead)
        Checkpoint(v=v).save(tmp_path / "a")
    for name in ("b", "c"):
        path = str(tmp_path / name)
        Checkpoint(v=v).write(path)
        assert latest_checkpoint(tmp_path) == path


def test_a_save_that_fails_is_not_counted(tmp_path, v):
    class Broken:
        def get_state(self):
            raise ValueError("no position")

        def set_state(self, state):
            pass

    manager = CheckpointManager(Checkpoint(v=v, broken=Broken()), tmp_path)
    with pytest.raises(ValueError, match="no position"):
        manager.save()
    assert manager.checkpoint.save_counter.numpy() == 0


@pytest.mark.parametrize("folder", ["run[1]", "lr=[0.1]", "a*b", "a?b", "a\\b", "{a,b}", "a b"])
def test_folders_may_have_any_name(tmp_path, v, folder):
    # Orbax takes some characters of a path as a pattern.
    manager = CheckpointManager(Checkpoint(v=v), tmp_path / folder)
    v.assign(3.0)
    manager.save(5)
    v.assign(0.0)
    assert manager.restore_latest() is not None
    assert float(v.read_value()) == 3.0


@pytest.mark.parametrize("name", ["a/b", "", "/ckpt", None])
def test_names_that_are_paths_are_refused(tmp_path, v, name):
    with pytest.raises(ArgumentError, match="checkpoint_name"):
        CheckpointManager(Checkpoint(v=v), tmp_path, checkpoint_name=name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint", {"v": 1.0}),
        ("directory", None),
        ("directory", b"runs"),
        ("max_to_keep", "3"),
        ("max_to_keep", 2.5),
        ("max_to_keep", True),
        ("save_interval_steps", None),
        ("keep_every_n_hours", "1"),
        ("keep_every_n_hours", float("nan")),
        ("keep_every_n_hours", -1),
        ("save_on_preemption", "no"),
    ],
)
def test_arguments_of_other_kinds_are_refused(tmp_path, v, name, value):
    options = {"checkpoint": Checkpoint(v=v), "directory": tmp_path, name: value}
    with pytest.raises(ArgumentTypeError, match=rf"{name}=.*\n.*{name} must be"):
        CheckpointManager(**options)


def test_numbers_of_numpy_and_jax_are_taken(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, np.int64(1), jnp.int32(1), keep_every_n_hours=np.float32(1))
    assert all(manager.save(step) for step in (1, 2))
    assert names(manager) == ["ckpt-2"]


@pytest.mark.parametrize("path", [3, b"c", {}])
def test_other_objects_than_paths_are_refused(v, path):
    checkpoint = Checkpoint(v=v)
    calls = (checkpoint.save, checkpoint.write, checkpoint.restore, checkpoint.read, CheckpointReader)
    for call in (*calls, latest_checkpoint, checkpoints_in):
        with pytest.raises(ArgumentTypeError, match=f"{call.__name__}: .*\n.*must be a path"):
            call(path)
    assert int(checkpoint.save_counter.numpy()) == 0


def slowed(monkeypatch):
    """Makes background writes slow, so that a restore that does not wait for them comes too early."""

    def slow(directory, manifest):
        time.sleep(0.3)
        writing.write(directory, manifest)

    monkeypatch.setattr("mirrored.checkpoint.manager.write", slow)
    monkeypatch.setattr("mirrored.checkpoint.checkpoint.write", slow)


def test_a_restore_waits_for_the_checkpoint_that_a_manager_writes(tmp_path, v, monkeypatch):
    checkpoint = Checkpoint(v=v)
    best = CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    best.save(0)
    best.wait()
    slowed(monkeypatch)
    for step, value in ((0, 2.0), (1, 3.0)):  # one is replaced, the other is new
        v.assign(value)
        path = best.save(step)
        v.assign(9.0)
        checkpoint.restore(path).assert_consumed()
        assert v.numpy() == value


def test_a_restore_waits_for_what_another_checkpoint_writes(tmp_path, v, monkeypatch):
    slowed(monkeypatch)
    path = Checkpoint(v=mr.Variable(2.0)).write(tmp_path / "c", wait=False)
    Checkpoint(v=v).read(path).assert_consumed()
    assert v.numpy() == 2.0


def test_the_newest_checkpoint_may_be_one_that_is_kept_for_good(tmp_path, v):
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=1, keep_every_n_hours=0)
    for step in (1, 2):
        v.assign(float(step))
        manager.save(step)
    manager.wait()
    shutil.rmtree(tmp_path / "ckpt-2")
    assert latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1")
    assert names(manager) == []
    assert manager.restore_latest() == 1
    assert v.numpy() == 1.0
