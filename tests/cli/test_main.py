from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mirrored.cli import main
from mirrored.cli.main import NEEDED


def test_help_names_every_command_and_what_it_does():
    output = CliRunner().invoke(main, ["--help"]).output
    assert "Synchronous data-parallel training for JAX" in output
    assert {line.split()[0] for line in output.partition("Commands:")[2].splitlines() if line.strip()} == set(
        main.commands
    )


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_and_option_has_help(command):
    assert main.commands[command].help
    for parameter in main.commands[command].params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{command} {parameter.opts}"


@pytest.mark.parametrize("command", sorted(main.commands))
def test_help_shows_no_marks_of_its_layout(command):
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0
    assert "\\b" not in done.output
    assert "\b" not in done.output


def test_unknown_command_names_itself():
    done = CliRunner().invoke(main, ["nonesuch"])
    assert done.exit_code == 2
    assert "No such command 'nonesuch'" in done.output


def test_a_command_whose_package_is_deleted_is_not_listed_and_names_the_package(monkeypatch):
    monkeypatch.setitem(NEEDED, "plan", "mirrored.nonesuch")
    assert "  plan " not in CliRunner().invoke(main, ["--help"]).output
    done = CliRunner().invoke(main, ["plan", "step.py"])
    assert done.exit_code == 2
    assert "'plan' needs mirrored.nonesuch, which this installation does not have" in done.output


_AND_SAY_IF_JAX_CAME = """
import sys
from mirrored.cli import main
try:
    main(sys.argv[1:], prog_name="mirrored")
finally:
    print("jax" in sys.modules, "numpy" in sys.modules, file=sys.stderr)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["nonesuch"], ["run"], ["plan", "nonesuch.py"]]
    + [[command, "--help"] for command in sorted(main.commands)],
    ids=" ".join,
)
def test_help_and_wrong_words_do_not_wait_for_jax(arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRRORED_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", _AND_SAY_IF_JAX_CAME, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert done.stderr.splitlines()[-1] == "False False"
    assert done.returncode == (0 if arguments[-1].startswith("--") else 2)
    assert "Usage: mirrored" in done.stdout + done.stderr
