#!/usr/bin/env python
"""Runs public programs that use `MirroredStrategy` on `mirrored.tf`, and reports which of them end without an error.

    python tools/run_public_programs.py --sources FOLDER --record after
    python tools/run_public_programs.py --sources FOLDER --tensorflow .../bin/python    # the control

`tools/public_programs/selection.json` names the programs: repository, commit and path, chosen by criteria before
anybody looked at them. The programs are not part of this project: ``FOLDER/<owner>+<repository>/`` contains git
directories (or clones), from which the runner takes the text. `import tensorflow as tf` becomes `import mirrored.tf as
tf`; arrays of the same shape replace data sets that would be downloaded (as in `tools/run_notebook.py`); epochs and
steps of `fit` are bounded while the program is loaded. Every program runs in a process of its own, in an empty folder.

The programs of the second and third selections have recorded substitutions, too: names that TensorFlow 2.21 has renamed
(one list for all), data that is not there, and sizes; and modules of their repositories. A notebook is run as one
program, its code cells in order. The outcomes of each selection are recorded separately.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import click
from notebook.cells import read_cells, translate
from public_programs import substitutions
from rich.console import Console

_TOOLS: Final = Path(__file__).parent
_SELECTION: Final = _TOOLS / "public_programs" / "selection.json"
_RESULTS: Final = {
    "first": _TOOLS / "public_programs" / "results.json",
    "second": _TOOLS / "public_programs" / "results_second.json",
    "third": _TOOLS / "public_programs" / "results_third.json",
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program as it is run.

    Attributes:
        name: Repository and path.
        text: Its source, after the recorded substitutions.
        modules: The sources of the modules that it imports, by their paths below the folder of the program.
    """

    name: str
    text: str
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        program: Repository and path.
        passed: Whether it ended without an error.
        seconds: The time that it ran.
        error: The last line of its error; "" without one.
        output: All that it wrote.
    """

    program: str
    passed: bool
    seconds: float
    error: str
    output: str


def source_of(repository: str, commit: str, path: str, sources: Path) -> str:
    """Returns the text of a program at a commit.

    Args:
        repository: ``owner/name``.
        commit: The commit.
        path: The path in the repository.
        sources: The folder with the git directories.

    Raises:
        click.ClickException: The program is not there.
    """
    clone = sources / repository.replace("/", "+")
    for folder in (clone / "repo" / ".git", clone / "repo", clone / ".git", clone):
        if (folder / "HEAD").is_file():
            shown = subprocess.run(["git", "--git-dir", folder, "show", f"{commit}:{path}"], capture_output=True)
            if shown.returncode == 0:
                return shown.stdout.decode(errors="replace")
    raise click.ClickException(f"{clone} has no {path} at {commit[:12]}: clone https://github.com/{repository} there")


def program_of(entry: Mapping[str, Any], sources: Path, renames: list[list[str]]) -> Program:
    """Returns a program of a selection, with its substitutions applied.

    Args:
        entry: The entry of the selection: ``repo``, ``commit``, ``path``, and for some ``modules`` (names of files
            beside the program, or a dict from their paths below it to their paths in the repository),
            ``substitutions`` (pairs of texts) and ``module_substitutions`` (the same by name of the module).
        sources: The folder with the git directories.
        renames: The patterns of renamed names and their replacements.

    Raises:
        click.ClickException: A file is not there.
        SubstitutionError: A substitution does not apply.
    """
    name, folder = f"{entry['repo']}: {entry['path']}", PurePosixPath(entry["path"]).parent
    place = entry["repo"], entry["commit"]
    paths = entry.get("modules", [])
    named = paths if isinstance(paths, dict) else {one: str(folder / one) for one in paths}
    changes = entry.get("module_substitutions", {})

    def changed(path: str, substituted: list[list[str]], named: str) -> str:
        text = source_of(*place, path, sources)
        text = code_of(text) if path.endswith(".ipynb") else text
        return substitutions.substituted(substitutions.renamed(text, renames), substituted, named)

    modules = {one: changed(path, changes.get(one, []), f"{name}: {one}") for one, path in named.items()}
    return Program(name, changed(entry["path"], entry.get("substitutions", []), name), modules)


def code_of(text: str) -> str:
    """Returns the code cells of a notebook as one program; magics and shell commands become ``pass``.

    Args:
        text: The text of the ``.ipynb`` file.

    Raises:
        ValueError: The text is not a notebook.
    """
    with tempfile.TemporaryDirectory(prefix="notebook_") as folder:
        path = Path(folder) / "program.ipynb"
        path.write_text(text, encoding="utf-8")
        cells = read_cells(path, framework="tensorflow")
    return "\n".join(cell.source for cell in cells if cell.writes is None)


def run_program(
    program: Program, *, seconds: float, devices: int, examples: int, tensorflow: Path | None = None
) -> Outcome:
    """Runs a program in a process of its own.

    Args:
        program: The program.
        seconds: The time limit.
        devices: Number of simulated devices, unless the program names more or configures its own.
        examples: Maximum number of examples of a data set.
        tensorflow: A Python with TensorFlow, which runs the program; None runs it on `mirrored.tf`.
    """
    python, framework = (sys.executable, "mirrored.tf") if tensorflow is None else (str(tensorflow), "tensorflow")
    text = program.text
    own = re.search(r"set_(logical|virtual)_device_configuration", text) is not None
    devices = max(devices, _named_devices(text))
    environment = _environment({} if own or tensorflow else _simulated(devices))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="program_") as folder:
        (Path(folder) / "program.py").write_text(text, encoding="utf-8")
        for name, source in program.modules.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(translate(source, framework), encoding="utf-8")
        command = [python, "-m", "public_programs.worker", str(Path(folder) / "program.py"), str(examples), framework]
        command += [] if own or tensorflow is None else [str(devices)]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
                process.kill()
                process.wait()
            output.seek(0)
            written = output.read().decode(errors="replace")
    error = "" if status == 0 else f"ran longer than {seconds:.0f} s" if status is None else _error_in(written, status)
    return Outcome(program.name, status == 0, time.monotonic() - started, error, written)


def _named_devices(text: str) -> int:
    """Returns how many devices the program needs at least, because it names as many GPUs."""
    return 1 + max(map(int, re.findall(r"gpu:(\d)", text, re.IGNORECASE)), default=0)


def _simulated(devices: int) -> dict[str, str]:
    return {"MIRRORED_VIRTUAL_DEVICES": str(devices), "MIRRORED_VIRTUAL_KIND": "GPU"}


def _environment(simulated: dict[str, str]) -> dict[str, str]:
    folders = [str(_TOOLS), str(_TOOLS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(one for one in folders if one)
    return {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1", **simulated}


def _error_in(written: str, status: int) -> str:
    lines = [line for line in written.splitlines() if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
    return lines[-1][:300] if lines else f"exit status {status}"


def record_outcomes(outcomes: list[Outcome], run: str, results: Path) -> None:
    """Records outcomes, for `tools/write_tallies.py`.

    Args:
        outcomes: The outcomes.
        run: The name of the run, such as ``"first"``; its former outcomes of other programs are kept.
        results: The file of the record.
    """
    record = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {"causes": {}}
    kept = record.get(run, {}).get("outcomes", {})
    shown = subprocess.run(["git", "-C", _TOOLS, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    record[run] = {
        "date": datetime.date.today().isoformat(),
        "commit": shown.stdout.strip(),
        "outcomes": {**kept, **{one.program: one.error for one in outcomes}},
    }
    results.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--sources", required=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder with the git directories.")  # fmt: skip
@click.option("--selection", type=click.Path(path_type=Path, exists=True), default=_SELECTION, help="The programs.")
@click.option("--part", type=click.Choice(list(_RESULTS)), default="first", help="The selection's part.")
@click.option("--only", default="", help="Run only programs whose name contains this text.")
@click.option("--seconds", type=click.FloatRange(min=1), default=180.0, help="Time limit of a program.")
@click.option("--devices", type=click.IntRange(min=1), default=2, help="Number of simulated devices.")
@click.option("--examples", type=click.IntRange(min=1), default=300, help="Maximum number of examples of a data set.")
@click.option("--tensorflow", type=click.Path(path_type=Path, exists=True), help="Python with TensorFlow: the control.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Folder for the output of programs.")
@click.option("--record", type=click.Choice(["first", "after"]), help="Record the outcomes as those of this run.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), help="The record, if not that of the part.")
def main(
    sources: Path,
    selection: Path,
    part: str,
    only: str,
    seconds: float,
    devices: int,
    examples: int,
    tensorflow: Path | None,
    logs: Path | None,
    record: str | None,
    results: Path | None,
) -> None:
    """Run the selected public programs; the exit status is 1 if one fails."""
    console, outcomes = Console(), []
    whole = json.loads(selection.read_text(encoding="utf-8"))
    chosen = whole if part == "first" else whole[part]
    for entry in chosen["programs"]:
        if only not in f"{entry['repo']}: {entry['path']}":
            continue
        program = program_of(entry, sources, chosen.get("renames", []))
        outcome = run_program(program, seconds=seconds, devices=devices, examples=examples, tensorflow=tensorflow)
        state = "passes" if outcome.passed else f"fails: {outcome.error}"
        console.print(
            f"{program.name} ({outcome.seconds:.0f} s) {state}", highlight=False, markup=False, soft_wrap=True
        )
        outcomes.append(outcome)
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            (logs / (re.sub(r"\W+", "_", program.name) + ".txt")).write_text(outcome.output, encoding="utf-8")
    console.print(f"{sum(one.passed for one in outcomes)} of {len(outcomes)} programs end without an error")
    if record is not None:
        record_outcomes(outcomes, record, results or _RESULTS[part])
    sys.exit(not all(one.passed for one in outcomes))


if __name__ == "__main__":
    main()
