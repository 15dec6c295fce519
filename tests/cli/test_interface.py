"""What programs and shells see of the command line: exit statuses, JSON, completion, examples in the help."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mirrored.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
WITHOUT_JSON = {"run"}  # its output is that of the program


def started(
    *arguments: str, folder: Path | None = None, seconds: float = 50, **settings: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRRORED_", "XLA_FLAGS"))}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path), **settings}
    command = [sys.executable, "-m", "mirrored.cli", *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )


# Exit statuses


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (0, ["devices"]),
        (1, ["devices", "CPU:64"]),
        (1, ["new", "/dev/null"]),
        (2, ["nonesuch"]),
        (2, ["devices", "--nonesuch"]),
        (2, ["devices", "--replicas", "0"]),
        (2, ["demo", "--replicas", "many"]),
        (2, ["run"]),
        (2, ["run", "--worker", "2", "train.py"]),
        (2, ["new"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_exit_status(status, arguments):
    assert CliRunner().invoke(main, arguments).exit_code == status
    assert re.search(rf"^\| {status} \|", PAGE, re.MULTILINE)


def test_a_misspelt_option_of_run_is_not_taken_for_the_program():
    done = CliRunner().invoke(main, ["run", "--worker", "2", "train.py"])
    assert re.search(r"No such option:? '?--worker\b", done.output)
    assert "--workers" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--coordinator", "host0:8476", "train.py"], "--coordinator host0:8476 was given without --nodes"),
        (["doctor", "--coordinator", "host0:8476"], "--coordinator host0:8476 was given without --nodes"),
        (["run", "--replicas", "2", "--replicas-per-worker", "4", "train.py"], "--replicas 2 was given with"),
        (["run", "--nodes", "1", "--coordinator", "host0:8476", "nonesuch.py"], "there is no file 'nonesuch.py'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_contradict_each_other_are_refused(arguments, told):
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, told in done.output) == (1, True), done.output


def test_exit_status_after_an_interrupt(monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mirrored.cli.devices.show_devices", interrupted)
    assert CliRunner().invoke(main, ["devices"]).exit_code == 130
    assert re.search(r"^\| 130 \|", PAGE, re.MULTILINE)


@pytest.mark.multiprocess
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('a message')", 1),
        ("raise ValueError('wrong')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
)
@pytest.mark.long
def test_exit_status_of_run_is_that_of_the_worker_that_failed(tmp_path, line, status):
    (tmp_path / "train.py").write_text(f"import os, signal, sys\n{line}\n")
    assert started("run", "--workers", "2", "train.py", folder=tmp_path).returncode == status


# JSON


@pytest.mark.parametrize("command", sorted(set(main.commands) - WITHOUT_JSON))
def test_commands_with_a_result_have_json(command):
    (option,) = [option for option in main.commands[command].params if "--json" in option.opts]
    assert option.help == "Print the result as JSON on standard output."
    assert f"`{command}`" in PAGE.partition("## JSON")[2].partition("## ")[0]


def test_devices_as_json():
    done = CliRunner().invoke(main, ["devices", "CPU:1", "CPU:3", "--replicas", "4", "--json"])
    found = json.loads(done.output)
    assert (found["replicas"], found["strategy"]) == (4, 'MirroredStrategy(["CPU:1", "CPU:3"], num_replicas=4)')
    replicas = {one["device"]: one["replicas"] for one in found["devices"]}
    assert (replicas["CPU:1"], replicas["CPU:2"], replicas["CPU:3"]) == ([0, 1], [], [2, 3])


@pytest.mark.multiprocess
@pytest.mark.long
def test_doctor_as_json():
    done = started("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (len(found["workers"]), found["wrong"], found["coordinator"]) == (1, [], None)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_doctor_of_two_workers_as_json(tmp_path):
    done = started("doctor", "--workers", "2", "--checkpoints", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["workers"] for one in found["links"]] == [[0, 1]]
    assert all(one["write_bytes_per_second"] > 0 for one in found["workers"])


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(300)  # two training runs and what they compile
def test_demo_as_json(tmp_path):
    arguments = ("--quick", "--replicas", "1", "--epochs", "1", "--out", str(tmp_path), "--json")
    done = started("demo", *arguments, seconds=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["replicas"], found["test_examples"], found["bits_are_equal"]) == (1, 357, True)
    assert "Report" in done.stderr


# The same option has the same type and help in all commands, except where it means something else.


def test_options_are_consistent():
    described: dict[str, set[str]] = {}
    for name, command in main.commands.items():
        for option in command.params:
            if option.param_type_name == "option" and not (option.name == "replicas" and name == "plan"):
                minimum = getattr(option.type, "min", None)
                described.setdefault(option.opts[0], set()).add(f"{option.type.name} {minimum}")
    assert {option: kinds for option, kinds in described.items() if len(kinds) > 1} == {}


@pytest.mark.parametrize("option", ["--workers", "--replicas-per-worker", "--nodes", "--node-rank", "--coordinator"])
def test_doctor_is_started_like_run(option):
    run, doctor = (next(one for one in main.commands[name].params if option in one.opts) for name in ("run", "doctor"))
    assert (run.help, run.type.name, run.default) == (doctor.help, doctor.type.name, doctor.default)


# Help


@pytest.mark.parametrize("command", sorted(main.commands))
@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_examples_keep_their_lines(command, columns):
    output = CliRunner().invoke(main, [command, "--help"], env={"COLUMNS": columns}).output
    examples = output.partition("  Examples:\n")[2].splitlines()
    starts = [line for line in examples if line.startswith(("    mirrored ", "    srun mirrored "))]
    assert any(line.startswith(f"    mirrored {command}") for line in starts)
    assert all(line.startswith("    ") for line in examples)
    assert max(map(len, examples)) <= 80


def test_the_list_of_commands_cuts_no_summary():
    output = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "70"}).output
    assert "..." not in output.partition("Commands:")[2]


@pytest.mark.parametrize("command", sorted(main.commands))
def test_examples_are_accepted(command):
    """Parses each example without running it."""
    lines = main.commands[command].epilog.splitlines()
    examples = [line.split("mirrored ", 1)[1] for line in lines if re.match(r"  (srun )?mirrored ", line)]
    assert examples
    for example in examples:
        name, *arguments = re.split(r"\s{2,}", example)[0].split()
        assert name == command
        arguments = [__file__ if argument == "step.py" else argument for argument in arguments]
        main.commands[command].make_context(name, arguments)


# Completion


def completed(words: str) -> list[str]:
    done = started(_MIRRORED_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
    assert done.returncode == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.multiprocess
def test_a_shell_completes_commands_and_options(tmp_path):
    assert completed("mirrored d") == ["demo", "devices", "doctor"]
    assert completed("mirrored new --k") == ["--keras"]
    assert completed("mirrored devices --kind g") == ["gpu"]


@pytest.mark.multiprocess
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_variable_prints_the_script(shell):
    assert f"_MIRRORED_COMPLETE={shell}_source mirrored" in PAGE
    done = started(_MIRRORED_COMPLETE=f"{shell}_source")
    if shell == "bash" and "Shell completion is not supported for Bash" in done.stderr:
        pytest.fail(done.stderr)
    assert "_MIRRORED_COMPLETE=" in done.stdout
