"""Damage, full disks and kills: a checkpoint is complete or absent, and a restore changes all state or none."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from checkpoint.damages import HOW, damage
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader, checkpoints_in
from mirrored.errors import CheckpointError, DamagedCheckpointError, MissingCheckpointError, MissingExtraError

# Orbax leaves futures behind whose loop is gone when a write fails.
unraisable = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

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


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def target():
    return Checkpoint(values={"a": np.zeros((40, 50), np.float32), "b": np.zeros(3, int)}, step=0)


@pytest.mark.long
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


@pytest.mark.long
def test_every_truncated_or_missing_file_is_noticed(saved, tmp_path):
    path, _ = saved
    for number, file in enumerate(files_of(path)):
        copy = shutil.copytree(path, tmp_path / f"copy{number}")
        damaged = os.path.join(copy, os.path.relpath(file, path))
        os.truncate(damaged, os.path.getsize(damaged) // 2)
        with pytest.raises(DamagedCheckpointError, match="checksum|is not a valid manifest"):
            target().restore(copy)
        os.remove(damaged)
        if not damaged.endswith("mirrored.json"):
            with pytest.raises(DamagedCheckpointError, match="is missing"):
                target().restore(copy)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "mirrored.json").write_text('{"format": "something else"}')
    with pytest.raises(DamagedCheckpointError, match="is not a valid manifest"):
        target().restore(tmp_path)
    (tmp_path / "mirrored.json").write_text('{"version": 99, "contents": {}, "checksum": ""}')
    with pytest.raises(DamagedCheckpointError, match="has version 99"):
        target().restore(tmp_path)


@contextlib.contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a small file system; if mounting is not permitted, a file size limit has a similar effect."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        with files_of_at_most(100_000):
            yield folder, "raise the file size limit"
        return
    yield folder, r"\(0\.\d MB are free on its file system\)(?s:.*)free space on its file system"
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def unprivileged():
    """Yields a folder of root and a function that drops or regains the right to write to it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        user = os.geteuid()

        def set_rights(on):
            if not on:
                os.seteuid(user)
            os.chmod(folder, 0o555 if on else 0o755)
            if on and user == 0:
                os.seteuid(65534)

        try:
            yield Path(folder), set_rights
        finally:
            set_rights(False)


@unraisable
def test_a_disk_that_fills_is_named_with_what_is_free_and_training_goes_on(full_disk):
    folder, remedy = full_disk
    v = mr.Variable(np.zeros(1000, np.float32))
    large = mr.Variable(np.random.default_rng(0).normal(size=100_000).astype(np.float32))
    checkpoint = Checkpoint(v=v)
    small = CheckpointManager(checkpoint, folder / "run", max_to_keep=None)
    small.save(1)
    small.wait()
    v.assign(np.ones(1000, np.float32))
    whole = CheckpointManager(Checkpoint(v=v, large=large), folder / "run", max_to_keep=None)
    whole.save(2)
    with pytest.raises(CheckpointError, match=f"ckpt-2 could not be written(?s:.*){remedy}"):
        whole.wait()
    assert [name for name in os.listdir(folder / "run") if not name.startswith(".")] == ["ckpt-1"]
    np.testing.assert_array_equal(large.numpy(), np.random.default_rng(0).normal(size=100_000).astype(np.float32))
    assert (v.numpy() == 1).all()
    small.save(3)
    assert small.restore_latest() == 3, "what has room is saved"
    checkpoint.restore(folder / "run" / "ckpt-1").assert_consumed()
    assert not v.numpy().any()


@unraisable
def test_a_read_only_folder_is_named_with_the_remedy_and_may_be_restored_from(unprivileged):
    folder, set_rights = unprivileged
    v = mr.Variable(1.0)
    before = CheckpointManager(Checkpoint(v=v), folder)
    before.save(1)
    before.wait()
    del before  # and its lock
    set_rights(True)
    v.assign(2.0)
    manager = CheckpointManager(Checkpoint(v=v), folder)
    manager.save(2)
    with pytest.raises(CheckpointError, match="ckpt-2 could not be written: PermissionError") as caught:
        manager.wait()
    assert (
        caught.value.remedy
        == "grant this user write permission on the folder, or choose another folder, and save again"
    )
    assert v.numpy() == 2.0
    assert manager.restore_latest() == 1
    assert v.numpy() == 1.0
    set_rights(False)
    manager.save(2)
    assert [os.path.basename(one) for one in manager.checkpoints] == ["ckpt-1", "ckpt-2"]


@unraisable
def test_full_disk_leaves_the_previous_one(tmp_path):
    v = mr.Variable(jnp.zeros(100_000))
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    manager.save(1)
    manager.wait()
    v.assign(np.random.default_rng(0).normal(size=100_000).astype(np.float32))
    with files_of_at_most(20_000):
        manager.save(2)
        with pytest.raises(CheckpointError, match="ckpt-2 could not be written"):
            manager.wait()
    assert visible(tmp_path) == ["ckpt-1"]
    assert manager.restore_latest() == 1
    assert not v.numpy().any()
    manager.save(3)
    assert [os.path.basename(one) for one in manager.checkpoints] == ["ckpt-1", "ckpt-3"]


@unraisable
def test_a_failed_replacement_leaves_the_old_one(tmp_path):
    v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    checkpoint.write(tmp_path / "c")
    v.assign(2.0)
    with files_of_at_most(10), pytest.raises(CheckpointError, match="could not be written"):
        checkpoint.write(tmp_path / "c")
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
    assert visible(tmp_path) == ["ckpt-1", "ckpt-3", "other.unfinished"]


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
@pytest.mark.long
def test_a_program_that_ends_finishes_its_last_checkpoint(tmp_path):
    process = program(TRAIN)(tmp_path, 3)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "saved 3" in output
    assert "Traceback" not in errors
    assert os.path.basename(checkpoints_in(tmp_path)[-1]) == "ckpt-3"
    assert CheckpointReader(tmp_path).read("step") == 3


@pytest.mark.multiprocess
@pytest.mark.long
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


@pytest.mark.parametrize("how", HOW)
def test_a_restart_goes_back_to_the_newest_checkpoint_that_is_whole(tmp_path, how):
    v = mr.Variable(np.zeros(50_000, np.float32))
    checkpoint = Checkpoint(v=v)
    manager = CheckpointManager(checkpoint, tmp_path)
    for step in (1, 2, 3):
        v.assign(np.random.default_rng(step).normal(size=50_000).astype(np.float32))
        manager.save(step)
    manager.wait()
    damage(tmp_path / "ckpt-3", how)
    other = mr.Variable(np.zeros(50_000, np.float32))
    again = CheckpointManager(Checkpoint(v=other), tmp_path)
    with pytest.warns(UserWarning, match="(?s)ckpt-2 was restored because newer checkpoints are damaged.*ckpt-3"):
        assert again.restore_latest() == 2
    np.testing.assert_array_equal(other.numpy(), np.random.default_rng(2).normal(size=50_000).astype(np.float32))
    again.save(3)
    assert again.restore_latest() == 3


def remove_when_opened(monkeypatch, folder, number):
    """Removes a checkpoint, as another process may do, before the array file of this number is opened.

    Returns a list that contains the opened files.
    """
    opened, real = [], Path.open

    def vanishing(self, *args, **options):
        if folder in self.parents and self.parent != folder:
            opened.append(self)
            if len(opened) > number:
                shutil.rmtree(folder, ignore_errors=True)
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "open", vanishing)
    return opened


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_skipped(tmp_path, monkeypatch, number):
    """Another process that writes checkpoints removes old ones; a bare FileNotFoundError ended the reading process."""
    v = mr.Variable(0.0)
    checkpoint = Checkpoint(v=v, step=0)
    manager = CheckpointManager(checkpoint, tmp_path)
    for step in (1, 2):
        v.assign(float(step))
        checkpoint.step = step
        manager.save(step)
    v.assign(0.0)
    opened = remove_when_opened(monkeypatch, tmp_path / "ckpt-2", number)
    assert manager.restore_latest() == 1
    assert (float(v), checkpoint.step) == (1.0, 1)
    assert len(opened) > number


@pytest.mark.parametrize("read", ["restore", "reader"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_named(tmp_path, monkeypatch, read, number):
    v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "model")
    v.assign(2.0)
    reader = CheckpointReader(path)
    opened = remove_when_opened(monkeypatch, Path(path), number)
    with pytest.raises(MissingCheckpointError, match="it was removed after its manifest was read"):
        reader.read("v") if read == "reader" else checkpoint.restore(path)
    assert float(v) == 2.0
    assert len(opened) > number


@pytest.mark.parametrize("how", ["truncated", "no manifest"])
def test_if_all_are_damaged_the_newest_is_named_and_nothing_changes(tmp_path, how):
    v = mr.Variable(np.zeros(50_000, np.float32))
    manager = CheckpointManager(Checkpoint(v=v), tmp_path)
    for step in (1, 2):
        manager.save(step)
    manager.wait()
    for step in (1, 2):
        damage(tmp_path / f"ckpt-{step}", how)
    v.assign(np.ones(50_000, np.float32))
    with pytest.raises(DamagedCheckpointError, match="ckpt-2"):
        manager.restore_latest()
    assert (v.numpy() == 1).all()


def test_a_folder_that_is_deleted_during_training_is_made_again(tmp_path):
    v = mr.Variable(1.0)
    manager = CheckpointManager(Checkpoint(v=v), tmp_path / "run")
    manager.save(1)
    manager.wait()
    shutil.rmtree(tmp_path / "run")
    manager.save(2)
    manager.wait()
    assert [os.path.basename(path) for path in manager.checkpoints] == ["ckpt-2"]


def test_a_folder_that_cannot_be_written_to_says_so_and_training_goes_on(tmp_path):
    (tmp_path / "taken").write_text("a file")
    v = mr.Variable(1.0)
    manager = CheckpointManager(Checkpoint(v=v), tmp_path / "taken")
    manager.save(1)
    with pytest.raises(CheckpointError, match="could not be written"):
        manager.wait()
    v.assign(2.0)
    assert v.numpy() == 2.0


def test_paths_and_names_in_any_script(tmp_path):
    folder = tmp_path / "Läufe 訓練 🚀"
    v = mr.Variable([1.0, 2.0], name="Gewicht/重み")
    manager = CheckpointManager(Checkpoint(**{"модель": {"ключ/é": v}}), folder, checkpoint_name="prüf")
    manager.save(7)
    v.assign([0.0, 0.0])
    assert manager.restore_latest() == 7
    assert v.numpy().tolist() == [1.0, 2.0]


@pytest.mark.multiprocess
@pytest.mark.timeout(300)
@pytest.mark.long
def test_of_two_jobs_in_one_folder_one_is_told_and_the_other_one_loses_nothing(tmp_path):
    train = program(TRAIN)
    jobs = [train(tmp_path, 40) for _ in range(2)]
    outputs = [job.communicate(timeout=280) for job in jobs]
    ended = [job.returncode for job in jobs]
    told = [errors for _, errors in outputs]
    # They may also have run one after the other.
    assert 0 in ended, told
    for job, other, errors in zip(jobs, reversed(jobs), told, strict=True):
        assert job.returncode == 0 or f"process {other.pid} on" in errors, errors
    assert visible(tmp_path) == ["ckpt-39", "ckpt-40"]
    after = train(tmp_path, 41)
    output, errors = after.communicate(timeout=280)
    assert after.returncode == 0, errors
    assert output.startswith("start 40")


@pytest.mark.timeout(300)
@pytest.mark.long
def test_many_checkpoints_take_no_more_memory_or_descriptors(tmp_path):
    v = mr.Variable(np.zeros(1000, np.float32))
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=2)
    marks = []
    for step in range(1, 121):
        v.assign_add(np.ones(1000, np.float32))
        manager.save(step)
        if step in (60, 120):
            manager.wait()
            marks.append((len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    assert marks[1][0] <= marks[0][0] + 2
    assert marks[1][1] <= marks[0][1] * 1.1
    assert len(visible(tmp_path)) == 2


def content(folder):
    """Every file below a folder with its content, without lock files."""
    files = (one for one in folder.rglob("*") if one.is_file() and not one.name.startswith("."))
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in files}


def make(path, *names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("important")


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ("a folder with sub, thesis.txt, and not", ["c/thesis.txt", "c/sub/x"]),
        ("a file", ["c"]),
        ("a folder with a, and not", ["c/a/mirrored.json"]),
        ("a folder with arrays, and not", ["c/arrays/mine.npy"]),
        ("a folder with mirrored.json, and not", ["c/mirrored.json"]),
        ("c.replaced is a folder with x, and not", ["c.replaced/x"]),
    ],
)
@pytest.mark.parametrize("wait", [True, False])
def test_what_is_no_checkpoint_is_not_replaced(tmp_path, wait, found, names):
    make(tmp_path, *names)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=found) as caught:
        Checkpoint(v=mr.Variable(1.0)).write(tmp_path / "c", wait=wait)
    assert (caught.value.called, "nothing was written" in caught.value.rule) == ("Checkpoint.write", True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_the_working_directory_and_the_root_are_not_replaced(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="not a checkpoint" if path == "/" else "the working directory"):
        Checkpoint(v=mr.Variable(1.0)).write(path)
    assert os.listdir(tmp_path) == []


def test_a_manager_and_a_counting_save_replace_no_folder_of_the_user(tmp_path):
    make(tmp_path, "ckpt-3/notes.txt")
    checkpoint = Checkpoint(v=mr.Variable(1.0))
    manager = CheckpointManager(checkpoint, tmp_path)
    with pytest.raises(CheckpointError, match=r"CheckpointManager.save: .*ckpt-3 is a folder with notes.txt"):
        manager.save(3)
    make(tmp_path, f"c-{int(checkpoint.save_counter.numpy()) + 1}/notes.txt")
    with pytest.raises(CheckpointError, match=r"c-1 is a folder with notes.txt"):
        checkpoint.save(tmp_path / "c")
    assert set(content(tmp_path)) == {"ckpt-3/notes.txt", "c-1/notes.txt"}


def test_an_empty_folder_and_a_damaged_checkpoint_are_replaced(tmp_path):
    checkpoint = Checkpoint(v=mr.Variable(np.zeros(50_000)))
    (tmp_path / "c").mkdir()
    checkpoint.write(tmp_path / "c")
    for how in HOW:
        damage(tmp_path / "c", how)
        checkpoint.write(tmp_path / "c")
        checkpoint.restore(tmp_path / "c").assert_consumed()
    assert visible(tmp_path) == ["c"]


def test_what_a_user_has_put_into_a_checkpoint_outlives_it(tmp_path):
    v = mr.Variable(1.0)
    manager = CheckpointManager(Checkpoint(v=v), tmp_path, max_to_keep=2)
    for step in (1, 1, 2):
        manager.save(step)
        manager.wait()
        make(tmp_path, "ckpt-1/metrics/best.json")
    shutil.copytree(tmp_path / "ckpt-2", tmp_path / "ckpt-2.replaced")
    make(tmp_path, "ckpt-2.replaced/plot.txt", "ckpt-9.unfinished/mine.txt")
    manager.save(2)
    manager.wait()
    assert (tmp_path / "ckpt-1/metrics/best.json").exists()
    assert {"ckpt-1/metrics/best.json", "ckpt-2/plot.txt"} < set(content(tmp_path))
    manager.save(3)
    manager.wait()
    assert set(content(tmp_path / "ckpt-1")) == {"metrics/best.json"}
    assert visible(tmp_path) == ["ckpt-1", "ckpt-2", "ckpt-3", "ckpt-9.unfinished"]
    assert [os.path.basename(path) for path in manager.checkpoints] == ["ckpt-2", "ckpt-3"]


def test_a_link_to_a_checkpoint_is_replaced_and_what_it_leads_to_stays(tmp_path):
    v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    checkpoint.write(tmp_path / "first")
    (tmp_path / "c").symlink_to(tmp_path / "first")
    for value in (2.0, 3.0):
        v.assign(value)
        checkpoint.write(tmp_path / "c")
    checkpoint.restore(tmp_path / "first").assert_consumed()
    assert v.numpy() == 1.0
    checkpoint.restore(tmp_path / "c").assert_consumed()
    assert v.numpy() == 3.0
    assert visible(tmp_path) == ["c", "first"]


def test_every_flipped_byte_of_the_beginning_and_the_end_of_a_manifest_is_noticed(tmp_path):
    """What stands beside the contents is in no checksum."""
    path = Path(Checkpoint(v=mr.Variable(1.0)).write(tmp_path / "c")) / "mirrored.json"
    whole = path.read_bytes()
    for at in (*range(40), *range(len(whole) - 60, len(whole))):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        with pytest.raises(DamagedCheckpointError):
            CheckpointReader(path.parent)
