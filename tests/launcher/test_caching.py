from __future__ import annotations

import os

from mirrored.launcher.environment import default_directory, tidy


def test_the_programs_used_longest_ago_go_first(tmp_path):
    for age, name in enumerate(["new", "middle", "old"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1_000_000 - age, 1_000_000 - age))
    assert tidy(tmp_path, limit_bytes=300) == 0
    assert tidy(tmp_path, limit_bytes=250) == 100
    assert sorted(one.name for one in tmp_path.iterdir()) == ["middle", "new"]
    assert tidy(tmp_path / "nowhere", limit_bytes=1) == 0


def test_the_folder_is_the_users_own():
    assert default_directory({"XDG_CACHE_HOME": "/x"}).parent == default_directory({"XDG_CACHE_HOME": "/x"}).parent
    assert str(default_directory({"XDG_CACHE_HOME": "/x"})).startswith("/x/mirrored/compiled/")
    assert str(default_directory({"HOME": "/h"})).startswith("/h/.cache/mirrored/compiled/")
