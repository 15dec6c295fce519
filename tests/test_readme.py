"""The README keeps its word: its example runs as it stands, and whatever it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import recording

from mirrored.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)[0]


@pytest.mark.multiprocess
def test_example_runs_as_it_stands(tmp_path):
    program = tmp_path / "example.py"
    program.write_text(EXAMPLE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        env={**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"loss \d\.\d\de-(0[4-9]|1\d), w = \[ 1. -2.  3.\], on 4 replicas\n", done.stdout), done.stdout


def test_example_is_short():
    assert len(EXAMPLE.splitlines()) <= 25


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].split())
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", README)) <= targets


def test_make_help_lists_all_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.findall(r"\t@echo \"(.*)\"", makefile.partition("\nhelp:\n")[2].partition("\n\n")[0])
    named = set(re.findall(r"(?:^make|; make|;) ([a-z-]+)", "\n".join(listed), re.MULTILINE))
    targets = targets_of_makefile() - {"help", "\\"}
    assert named & targets == targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), "phony, but without a rule"


def test_files_exist():
    named = set(re.findall(r"\b(?:tests|docs|benchmarks|examples|src)/[\w/.-]+\w", README))
    assert named
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_links_and_figures_exist():
    for page in ("README.md", "CONTRIBUTING.md", "AGENTS.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        assert targets
        assert [target for target in targets if not (ROOT / target).exists()] == []
        assert set(re.findall(r"\bmake ([a-z][a-z-]*)", text)) <= targets_of_makefile(), page


def targets_of_makefile() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].split())


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "AGENTS.md"])
def test_files_and_folders_for_contributors_exist(page):
    named = set(re.findall(r"(?:tests|docs|tools|src|examples)/[\w/.-]*\w", (ROOT / page).read_text(encoding="utf-8")))
    assert named
    assert [name for name in sorted(named) if "NAME" not in name and not (ROOT / name).exists()] == ["tests/FOLDER"] * (
        page == "AGENTS.md"
    )


COMMANDS = re.findall(r"\.venv/bin/mirrored ([^`\n]*)", README)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_program_are_accepted(command):
    """Parses each command; `spirals/train.py` is created by an earlier one."""
    name, *arguments = command.split()
    arguments = [__file__ if argument == "spirals/train.py" else argument for argument in arguments]
    main.commands[name].make_context(name, arguments)


def test_programs_of_the_commands_exist():
    """A fresh clone has no train.py: each program is in the repository or made by an earlier command."""
    programs = set(re.findall(r"(?<![\w/])[\w/]+\.py\b", "\n".join(COMMANDS)))
    assert programs <= {"spirals/train.py"}
    assert "new spirals" in COMMANDS


def test_the_recording_shows_commands_of_the_readme_and_needs_no_network():
    figure = (ROOT / "docs" / "recordings" / "first_training.svg").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"<]+", figure)) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
    shown = re.sub(r"<[^>]*>", "", figure).replace("&#160;", " ")
    for command in recording.COMMANDS:
        assert command in shown
    assert "replicas 4, loss" in shown
