from __future__ import annotations

import pytest
from click.testing import CliRunner

from mirrored.cli import main


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


def test_unknown_command_names_itself():
    done = CliRunner().invoke(main, ["nonesuch"])
    assert done.exit_code == 2
    assert "No such command 'nonesuch'" in done.output
