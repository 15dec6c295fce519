from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def run(name: str, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = None if path is None else {"PATH": path, "HOME": "/nonexistent"}
    command = ["bash", str(SCRIPTS / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


@pytest.fixture
def tools(tmp_path):
    """A PATH with what the scripts need and no Python."""
    (tmp_path / "bash").symlink_to("/bin/bash")
    shim(tmp_path, "sleep", "exit 0")
    return tmp_path


def shim(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{content}\n")
    (folder / name).chmod(0o755)


def test_finds_a_python_that_starts(tools):
    shim(tools, "python3.13", "echo 'no such version' >&2; exit 127")
    shim(tools, "python3", f'exec {sys.executable} "$@"')
    done = run("find_python", path=str(tools))
    assert done.stdout == f"{tools}/python3\n", done.stderr


def test_prefers_the_newest(tools):
    shim(tools, "python3", "exit 0")
    shim(tools, "python3.12", "exit 0")
    shim(tools, "python3.11", "exit 0")
    assert run("find_python", path=str(tools)).stdout == f"{tools}/python3.12\n"


def test_without_a_python_says_what_to_install(tools):
    done = run("find_python", "3.12", path=str(tools))
    assert done.returncode == 1
    assert "no Python from 3.12 to 3.13" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr


def test_an_old_python_is_not_taken(tools):
    shim(tools, "python3", f'exec {sys.executable} "$@"')
    newer = f"3.{sys.version_info.minor + 1}"
    assert run("find_python", newer, path=str(tools)).returncode == 1


def test_the_highest_python_can_be_bounded(tools):
    shim(tools, "python3", f'exec {sys.executable} "$@"')
    this, older = (f"3.{sys.version_info.minor - back}" for back in (0, 1))
    assert run("find_python", "3.11", this, path=str(tools)).returncode == 0
    done = run("find_python", "3.10", older, path=str(tools))
    assert done.returncode == 1
    assert f"no Python from 3.10 to {older}" in done.stderr


def test_installing_without_a_python_fails():
    assert run("install", "/nonexistent/venv", "", "test").returncode == 1


def test_installing_asks_a_failing_index_again(tools):
    venv = tools / "venv"
    (venv / "bin").mkdir(parents=True)
    shim(venv / "bin", "python", f'[[ "$1" == -c ]] && exit 0; echo "$@" >> {tools}/asked; exit 1')
    done = run("install", str(venv), "python3", "test", "jax==0.10.0", path=str(tools))
    assert done.returncode == 1
    asked = (tools / "asked").read_text().splitlines()
    assert len(asked) == 3
    assert asked[0].endswith("--editable .[test] jax==0.10.0")
