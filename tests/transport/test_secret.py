from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrored.errors import ArgumentError
from mirrored.transport import load_secret


def test_it_is_generated_once_for_this_user(tmp_path):
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: load_secret(environment), range(16)))
    assert len(found) == 1
    (secret,) = found
    assert len(secret) == 64
    path = tmp_path / "mirrored" / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["secret"]
    assert load_secret({"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}) != secret


def test_the_environment_and_a_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text("s" * 20 + "\n")
    path.chmod(0o640)
    assert load_secret({"MIRRORED_SECRET": "t" * 20}) == b"t" * 20
    assert load_secret({"MIRRORED_SECRET": "t" * 20, "MIRRORED_SECRET_FILE": str(path)}) == b"s" * 20


def test_what_does_not_protect_is_refused_without_showing_it(tmp_path):
    path = tmp_path / "secret"
    path.write_text("s" * 20)
    path.chmod(0o644)
    with pytest.raises(ArgumentError, match="has the mode 644: every user can use it"):
        load_secret({"MIRRORED_SECRET_FILE": str(path)})
    with pytest.raises(ArgumentError, match=r"MIRRORED_SECRET=\.\.\.: its value has 5 characters") as caught:
        load_secret({"MIRRORED_SECRET": "short"})
    assert "short" not in str(caught.value)
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ArgumentError, match="the secret has 5 bytes"):
        load_secret({"MIRRORED_SECRET_FILE": str(path)})
    with pytest.raises(ArgumentError, match="cannot be read"):
        load_secret({"MIRRORED_SECRET_FILE": str(tmp_path / "none")})


def test_a_home_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be stored there"):
        load_secret({"XDG_CONFIG_HOME": str(tmp_path / "file")})
