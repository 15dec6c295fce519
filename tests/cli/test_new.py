"""`mirrored new`: what it creates trains, passes its own tests, and runs on two workers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import mirrored as mr
from mirrored.cli import main
from mirrored.cli.new import project
from mirrored.cli.new.project import FRAMEWORKS, create_project

ROOT = Path(__file__).parents[2]
FILES = [".gitignore", "README.md", "pyproject.toml", "test_train.py", "train.py"]


def new(*arguments: str):
    return CliRunner().invoke(main, ["new", *arguments])


def test_it_names_what_it_has_created_and_what_to_do_next(tmp_path):
    done = new(str(tmp_path / "spirals"))
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "spirals").iterdir()) == FILES
    assert f"  cd {tmp_path / 'spirals'}\n  python train.py\n" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["spirals"], "no temporary folder is left"


def test_figures_for_programs(tmp_path):
    done = new(str(tmp_path / "spirals"), "--nnx", "--json")
    assert json.loads(done.output) == {
        "directory": str(tmp_path / "spirals"),
        "framework": "nnx",
        "files": FILES,
    }


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "spirals").mkdir()
    assert new(str(tmp_path / "spirals")).exit_code == 0


@pytest.mark.parametrize("through", ["the working directory", "a link"])
def test_an_empty_folder_is_filled_and_not_replaced(tmp_path, monkeypatch, through):
    """A shell in a folder that was replaced is in no folder: its next command would not find the project."""
    place = tmp_path / "spirals"
    place.mkdir(mode=0o700)
    before = place.stat()
    if through == "a link":
        (tmp_path / "link").symlink_to(place)
    monkeypatch.chdir(place)
    done = new("." if through == "the working directory" else str(tmp_path / "link"))
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir(".")) == FILES
    assert (place.stat().st_ino, place.stat().st_mode) == (before.st_ino, before.st_mode)
    assert (
        f'name = "{"spirals" if through == "the working directory" else "link"}"' in Path("pyproject.toml").read_text()
    )


def test_a_file_that_appears_meanwhile_stays_and_the_others_are_removed(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("mine")
    monkeypatch.setattr(project, "_check", lambda _: None)
    done = new(str(tmp_path))
    assert done.exit_code == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"train.py": "mine"}


@pytest.mark.parametrize("what", ["a file in it", "a file"])
def test_what_exists_is_not_replaced(tmp_path, what):
    place = tmp_path / "spirals"
    if what == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "train.py").write_text("mine")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    done = new(str(place))
    assert done.exit_code == 1
    assert "exists and is not an empty folder" in done.output
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_missing_parent_is_named(tmp_path):
    done = new(str(tmp_path / "absent" / "spirals"))
    assert done.exit_code == 1
    assert "create its parent folder" in done.output
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_no_part_of_a_project(tmp_path, monkeypatch):
    monkeypatch.setattr(type(tmp_path), "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        create_project(tmp_path / "spirals", "jax")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_files_are_filled_in_and_name_extras_that_exist(tmp_path, framework):
    create_project(tmp_path / "My Spirals", framework)
    for name in FILES:
        assert "$" not in (tmp_path / "My Spirals" / name).read_text()
    project = tomllib.loads((tmp_path / "My Spirals" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "my-spirals"
    named = re.fullmatch(r"mirrored\[(.*)\]", project["dependencies"][0])[1].split(",")
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(named) <= set(ours)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
@pytest.mark.long
def test_the_program_trains_on_two_replicas(tmp_path, framework):
    create_project(tmp_path / "spirals", framework)
    specification = importlib.util.spec_from_file_location("train_of_project", tmp_path / "spirals" / "train.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    losses, model = module.train(mr.MirroredStrategy(["CPU:0"], num_replicas=2), num_steps=8)
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert 0.4 < module.accuracy_of(model) <= 1


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(400)
@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_the_project_passes_its_tests_and_runs_on_two_workers(tmp_path, framework):
    create_project(tmp_path / "spirals", framework)
    assert "3 passed" in started(tmp_path / "spirals", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    run = ("-m", "mirrored.cli", "run", "--workers", "2", "--replicas-per-worker", "2", "train.py")
    for steps in (60, 120):
        output = started(tmp_path / "spirals", *run, "--steps", str(steps), "--checkpoints", "checkpoints")
        assert re.search(r"\[worker 0\] replicas 4, loss [\d.]+, accuracy [\d.]+%", output), output
        assert "[worker 1] replicas" not in output
    assert (tmp_path / "spirals" / "checkpoints" / "ckpt-120").is_dir()


def started(folder, *arguments: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=190,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
