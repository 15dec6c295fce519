from __future__ import annotations

import os
import sys

import pytest

from mirrored.launcher import running
from mirrored.launcher.environment import default_directory, tidy
from mirrored.launcher.job import Job


def test_the_programs_used_longest_ago_go_first(tmp_path):
    for age, name in enumerate(["new-cache", "middle-atime", "old-cache"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1_000_000 - age, 1_000_000 - age))
    assert tidy(tmp_path, limit_bytes=300) == 0
    assert tidy(tmp_path, limit_bytes=250) == 100
    assert sorted(one.name for one in tmp_path.iterdir()) == ["middle-atime", "new-cache"]
    assert tidy(tmp_path / "nowhere", limit_bytes=1) == 0


def test_files_of_the_user_in_the_folder_stay(tmp_path):
    names = ["data.npy", "notes-cached.txt", "one-cache"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(100))
    (tmp_path / "folder-cache").mkdir()
    (tmp_path / "gone-cache").symlink_to(tmp_path / "nowhere")  # as if another job removed it meanwhile
    assert tidy(tmp_path, limit_bytes=0) == 100
    assert {one.name for one in tmp_path.iterdir()} == {*names[:2], "folder-cache", "gone-cache"}


def test_a_cache_that_is_disabled_by_an_empty_variable_has_no_folder(tmp_path, monkeypatch):
    tidied = []
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.setattr(running, "tidy", tidied.append)
    monkeypatch.setattr(running, "_become", lambda job: sys.exit(7))
    (tmp_path / "train.py").touch()
    job = Job(program=str(tmp_path / "train.py"))
    with pytest.raises(SystemExit, match="7"):
        running.run_job(job)
    assert not tidied
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    with pytest.raises(SystemExit, match="7"):
        running.run_job(job)
    assert len(tidied) == 1


def test_the_folder_is_the_users_own():
    assert default_directory({"XDG_CACHE_HOME": "/x"}).parent == default_directory({"XDG_CACHE_HOME": "/x"}).parent
    assert str(default_directory({"XDG_CACHE_HOME": "/x"})).startswith("/x/mirrored/compiled/")
    assert str(default_directory({"HOME": "/h"})).startswith("/h/.cache/mirrored/compiled/")
