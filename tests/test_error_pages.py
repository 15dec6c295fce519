"""Each error and warning class has a page, whose wrong program raises exactly it and whose right program runs."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from mirrored import errors

PAGES = Path(__file__).parents[1] / "docs" / "errors"
DEFINED = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, (errors.MirroredError, Warning)) and cls is not errors.MirroredError
}
NAMES = sorted([*DEFINED, "LossReductionWarning"])
# Programs of several workers, and one whose failed steps would also fail later programs of the process.
SEVERAL_WORKERS = ("AbsentWorkerError", "DisagreementError", "WorkerStateWarning")
OWN_PROCESS = ("LostStateError",)
# The environment in which a launcher starts the wrong program.
ENVIRONMENT = {
    "IndependentProcessesWarning": {
        **{"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    }
}


def page_of(name: str) -> Path:
    return PAGES / f"{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}.md"


def section(name: str, heading: str, language: str) -> str:
    """The first code block in a section of a page."""
    text = page_of(name).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_class_has_a_page_and_every_page_a_class():
    assert {page_of(name) for name in NAMES} == set(PAGES.glob("*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_states_the_builtin_bases(name):
    module = "mirrored.errors" if name in DEFINED else "mirrored.integrations.keras"
    cls = getattr(importlib.import_module(module), name)
    title, stated, *_ = page_of(name).read_text(encoding="utf-8").split("\n\n")
    assert title == f"# {name}"
    assert stated.startswith(f"`{module}.{name}`, ")
    bases = {base.__name__ for base in cls.__bases__} - {"MirroredError"}
    assert set(re.findall(r"`(\w+)`", stated)) == bases


def outcome(program: str, folder: Path) -> str:
    """What a program raises or warns of: the class and the message."""
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "".join(f"{one.category.__name__}: {one.message}" for one in caught)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TF_CONFIG")):
            monkeypatch.delenv(name)
    yield tmp_path
    os.environ.pop("TF_CONFIG", None)


@pytest.fixture
def without_kubernetes(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)


@pytest.mark.first(16)
@pytest.mark.parametrize("name", sorted(set(NAMES) - {*SEVERAL_WORKERS, *OWN_PROCESS}))
@pytest.mark.usefixtures("without_kubernetes")
def test_programs_of_the_page(name, folder, monkeypatch):
    with monkeypatch.context() as launched:
        for variable, value in ENVIRONMENT.get(name, {}).items():
            launched.setenv(variable, value)
        found = outcome(section(name, "Wrong program", "python"), folder)
    expected = section(name, "Wrong program", "text")
    assert comparable(found, folder) == comparable(expected, folder)
    assert found.startswith(f"{name}: ")
    assert outcome(section(name, "Right program", "python"), folder) == ""


def comparable(text: str, folder: Path) -> str:
    """A message without the folder, and without the platform's words for a cause."""
    text = words(text).replace(f"{folder}/", "").replace(f"{folder}", ".")
    text = re.sub(r"\.[0-9a-f]{8}\.unfinished", ".unfinished", text)
    text = re.sub(r"\(\[Errno.*?\]? [\w ]+\)", "()", text)
    return re.sub(r"cannot be imported: .*? rule:", "cannot be imported rule:", text)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", OWN_PROCESS)
@pytest.mark.long
def test_programs_in_a_process_of_their_own(name, tmp_path):
    wrong = started([sys.executable, "train.py"], section(name, "Wrong program", "python"), tmp_path)
    assert wrong.returncode == 1
    # XLA's words and number of bytes differ between versions.
    expected, found = (
        re.sub(r"RESOURCE_EXHAUSTED: .*? rule:", "RESOURCE_EXHAUSTED rule:", words(text))
        for text in (section(name, "Wrong program", "text"), wrong.stderr)
    )
    assert expected in found
    right = started([sys.executable, "train.py"], section(name, "Right program", "python"), tmp_path)
    assert right.returncode == 0, right.stderr


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", SEVERAL_WORKERS)
def test_programs_of_several_workers(name, tmp_path):
    command = [sys.executable, "-m", "mirrored.cli", "run", "--workers", "2", "--replicas-per-worker", "1", "train.py"]
    wrong = started(command, section(name, "Wrong program", "python"), tmp_path, MIRRORED_AGREEMENT_SECONDS="3")
    is_warning = issubclass(DEFINED[name], Warning)
    assert wrong.returncode == (0 if is_warning else 1)
    # Either worker may report first, so a page shows one of the orders.
    said = words(re.sub(r"^\[(?:worker \d|mirrored)\] ", "", wrong.stdout + wrong.stderr, flags=re.MULTILINE))
    assert (f"{name}: " if is_warning else f"mirrored.errors.{name}: ") in said
    rule = words(section(name, "Wrong program", "text")).partition(" rule: ")[2]
    assert rule in said
    for place in re.findall(r"at (?:train\.py:\d+)", section(name, "Wrong program", "text")):
        assert place in said
    right = started(command, section(name, "Right program", "python"), tmp_path)
    assert right.returncode == 0, right.stdout + right.stderr
    assert name not in right.stdout + right.stderr


def started(command: list[str], program: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path), **settings}
    return subprocess.run(
        command, env={**kept, **environment}, cwd=folder, capture_output=True, text=True, timeout=50, check=False
    )
