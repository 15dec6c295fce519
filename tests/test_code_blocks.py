"""The Python blocks of the README and the pages run as programs, and their commands name what exists.

The programs of the error pages run in `test_error_pages.py`, that of the README in `test_readme.py`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import click
import code_blocks
import pytest
from code_blocks import ROOT, CodeBlock, blocks_of

from mirrored.cli import main

BLOCKS = [block for page in code_blocks.pages() for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [block for block in BLOCKS if block.language in ("bash", "") and block.page.parent.name != "errors"]
LANGUAGES = {"python", "bash", "text", "yaml", "diff", ""}
SECTIONS_OF_ERROR_PAGES = ("Wrong program", "Right program")


def heading_of(block: CodeBlock) -> str:
    """The heading of the section that has a block."""
    above = block.page.read_text(encoding="utf-8").splitlines()[: block.line]
    return next(line[3:] for line in reversed(above) if line.startswith("## "))


def runs_elsewhere(block: CodeBlock) -> bool:
    of_error_page = block.page.parent.name == "errors" and heading_of(block) in SECTIONS_OF_ERROR_PAGES
    return of_error_page or block.page == ROOT / "README.md"


HERE = [block for block in PYTHON if not runs_elsewhere(block) and block.excerpt is None]
OF_SEVERAL_WORKERS = [block for block in HERE if "MultiWorkerMirroredStrategy" in block.text]


# The list of blocks


def test_blocks_have_a_known_language():
    assert {block.language for block in BLOCKS} <= LANGUAGES


def test_an_indented_block_is_no_python():
    """Python has a fence with its language, so that it is found here, coloured on the site, and executed."""
    for block in BLOCKS:
        if block.language == "":
            with pytest.raises(SyntaxError):
                ast.parse(block.text)


def test_an_excerpt_states_its_reason():
    for block in BLOCKS:
        assert block.excerpt is None or len(block.excerpt.split()) >= 4, f"{block}: say why it cannot run as it stands"


def test_the_readme_and_the_sections_of_error_pages_have_one_program_each():
    """Those tests execute the first one."""
    places = Counter((block.page.name, heading_of(block)) for block in PYTHON if runs_elsewhere(block))
    assert set(places.values()) == {1}
    assert len(places) == 1 + len(SECTIONS_OF_ERROR_PAGES) * len(list((ROOT / "docs" / "errors").glob("*.md")))


def test_blocks_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text:\n\n    make a\n\n    make b\n\n- an item\n\n      no block\n\n    of an item\n\nMore\n    no block\n\n"
        "<!-- excerpt: the page shows no data -->\n\n```python\nx = 1\n\ny = 2\n```\n\n````text\n```\n````\n"
        "```{toctree}\npage\n```\n",
        encoding="utf-8",
    )
    found = [(block.line, block.language, block.text, block.excerpt) for block in blocks_of(page)]
    assert found == [
        (3, "", "make a\n\nmake b\n", None),
        (18, "python", "x = 1\n\ny = 2\n", "the page shows no data"),
        (24, "text", "```\n", None),
    ]
    tutorial = tmp_path / "tutorial.py"
    tutorial.write_text('# %% [markdown]\n# ```python\n# x = 1\n#\n# ```\n# %%\ny = "```"\n', encoding="utf-8")
    assert [(block.line, block.text) for block in blocks_of(tutorial)] == [(2, "x = 1\n\n")]
    page.write_text("```python\nx = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r":1: the code block has no end"):
        blocks_of(page)


# Programs


def expected_output(block: CodeBlock) -> str | None:
    """The block behind "It prints:", if a program has one."""
    lines = block.page.read_text(encoding="utf-8").splitlines()
    end = block.line + block.text.count("\n") + 1
    behind = [one for one in blocks_of(block.page) if one.line > end and one.language == "text"][:1]
    between = [line for line in lines[end : behind[0].line - 1] if line] if behind else []
    return behind[0].text if between == ["It prints:"] else None


@pytest.mark.parametrize("block", [block for block in HERE if block not in OF_SEVERAL_WORKERS], ids=str)
@pytest.mark.first(2)
def test_program_of_a_page_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(block.text, encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path("train.py", run_name="__main__")
    assert printed.getvalue() == (expected_output(block) or "")


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("train.py",), id="alone"),
        pytest.param(
            ("-m", "mirrored.cli", "run", "--workers", "2", "--replicas-per-worker", "2", "train.py"), id="job"
        ),
    ],
)
@pytest.mark.parametrize("block", OF_SEVERAL_WORKERS, ids=str)
@pytest.mark.long
def test_program_of_several_workers_runs_alone_and_as_a_job(block, command, tmp_path):
    (tmp_path / "train.py").write_text(block.text, encoding="utf-8")
    if "mr.elastic.run" in block.text and len(command) > 1:
        command = ("-m", "mirrored.cli", "run", "--elastic", "--workers", "2", "train.py")  # It names its replicas.
    done = started(command, tmp_path, MIRRORED_VIRTUAL_DEVICES="" if len(command) > 1 else "2")
    assert done.returncode == 0, done.stdout + done.stderr


def started(arguments: tuple[str, ...], folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


# Commands

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Programs of users that the pages speak of.
THEIR_PROGRAMS = {"train.py", "step.py", "spirals/train.py"}
# Programs of other projects: their own options are not checked.
OTHER_PROGRAMS = {"jq"}


def commands_of(block: CodeBlock) -> list[list[str]]:
    """The commands of a block as words, without comments and assignments to environment variables."""
    found = []
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="|&")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, "|"]:
            if set(word) <= set("|&"):
                found += [command] if command else []
                command = []
            elif command or not re.match(r"[A-Z_]+=", word):
                command.append(word)
    return found


def check_mirrored(arguments: list[str]) -> None:
    name, *rest = arguments
    placed = [__file__ if word in THEIR_PROGRAMS else word for word in rest]
    main.commands[name].make_context(name, placed)


def check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].replace("\\\n", " ").split())
    assert set(arguments) <= targets


def check_pip(arguments: list[str]) -> None:
    extras = {extra for word in arguments for extra in re.findall(r"[\w-]+", word.partition("[")[2])}
    if not any(word.startswith("jax") for word in arguments):
        assert extras <= set(PROJECT["optional-dependencies"])


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        paths = [word for word in arguments[2:] if word.startswith("tests/") and "FOLDER" not in word]
        assert arguments[1] in {"pytest", "ruff", "mypy", "venv"}
        assert [path for path in paths if not (ROOT / path).exists()] == []
    elif arguments[0] not in THEIR_PROGRAMS:
        source = (ROOT / arguments[0]).read_text(encoding="utf-8")
        options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in source] == []


def check_srun(arguments: list[str]) -> None:
    check([word for word in arguments if not word.startswith("-")][:1] + arguments[1:])


CHECKS = {
    **{"mirrored": check_mirrored, "make": check_make, "pip": check_pip, "srun": check_srun},
    **{"python": check_python, "python3": check_python},
}


def check(command: list[str]) -> None:
    """Fails if a command names a program, file, target, extra or option that does not exist."""
    program = command[0].removeprefix(".venv/bin/")
    if program in CHECKS:
        CHECKS[program](command[1:])
    else:
        assert program in OTHER_PROGRAMS or (ROOT / program).is_file(), program


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_commands_name_what_exists(block):
    commands = commands_of(block)
    assert commands
    for command in commands:
        check(command)


@pytest.mark.parametrize(
    "command",
    ["mirrored run --nonesuch train.py", "make nonesuch", "pip install '.[nonesuch]'", "python tools/nonesuch.py",
     "python tools/chaos.py --nonesuch", "nonesuch", "srun mirrored nonesuch"],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_found(command):
    with pytest.raises((AssertionError, KeyError, OSError, click.UsageError)):
        check(shlex.split(command))


def runs_on_this_machine(command: list[str]) -> bool:
    """Whether a command is one of ours that needs no other machine, and has no tests of its own, as `demo` has."""
    ours = command[0].removeprefix(".venv/bin/") == "mirrored" and command[1] in {"devices", "new", "run"}
    return ours and "--nodes" not in command


STARTED = [(block, [one for one in commands_of(block) if runs_on_this_machine(one)]) for block in COMMANDS]


@pytest.mark.multiprocess
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("block", "commands"), [pytest.param(*pair, id=str(pair[0])) for pair in STARTED if pair[1]])
@pytest.mark.long
def test_commands_run(block, commands, tmp_path):
    """In a folder with a program of the user, which a job of any size runs in little time."""
    (tmp_path / "train.py").write_text("print('trained')\n", encoding="utf-8")
    for command in commands:
        done = started(("-m", "mirrored.cli", *command[1:]), tmp_path)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        if command[1] == "run" and "train.py" in command:
            assert "trained" in done.stdout
