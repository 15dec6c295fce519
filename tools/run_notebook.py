#!/usr/bin/env python
"""Runs TensorFlow's notebooks on `mirrored.tf` and reports which cells pass.

    python tools/run_notebook.py guide/autodiff.ipynb tutorials/distribute/*.ipynb

`import tensorflow as tf` becomes `import mirrored.tf as tf`, and shell commands are omitted; the rest of the code is
unchanged. Arrays of the same shape replace data sets that would be downloaded. Every notebook runs in a separate
process, in an empty folder.

Results are compared with TensorFlow's. `--record FILE --tensorflow PYTHON` runs every notebook twice on TensorFlow
itself and keeps the results that are equal in both runs; `--compare FILE` compares our results with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from notebook import comparison
from notebook.cells import read_cells
from notebook.comparison import Recording
from notebook.report import show, show_comparisons
from notebook.results import CellResult, NotebookResult
from rich.console import Console

_TOOLS: Final = Path(__file__).parent
_START_SECONDS: Final = 120.0  # time to load Python, JAX and Keras


def run_notebook(
    path: Path,
    *,
    seconds: float,
    devices: int,
    kind: str,
    examples: int,
    log: Path | None,
    tensorflow: Path | None = None,
) -> NotebookResult:
    """Runs all cells of a notebook in a separate process.

    Args:
        path: The notebook.
        seconds: The time limit of a cell.
        devices: Number of simulated CPU devices.
        kind: The device type that they simulate.
        examples: Maximum number of examples of a data set.
        log: The file for the output of the cells; None discards it.
        tensorflow: A Python with TensorFlow, which runs the notebook; None runs it on `mirrored.tf`.

    Returns:
        A result for every cell; the cells after a lost process have failed.

    Raises:
        ValueError: The file is not a notebook.
    """
    numbers = [cell.number for cell in read_cells(path)]
    reader, writer = os.pipe()
    found: list[CellResult] = []
    with tempfile.TemporaryDirectory(prefix="notebook_") as folder, _output(log) as output:
        python, framework = (sys.executable, "mirrored.tf") if tensorflow is None else (str(tensorflow), "tensorflow")
        command = [python, "-m", "notebook.worker", str(path.absolute()), str(seconds), str(examples), framework]
        simulated = _devices(path, devices, kind)
        command += [str(devices)] if simulated and tensorflow is not None else []
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**_environment(writer), **simulated},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
        )
        os.close(writer)
        try:
            with os.fdopen(reader) as lines:
                found = [CellResult(**json.loads(line)) for line in lines]
            process.wait(_START_SECONDS)
        finally:
            process.kill()
            process.wait()
    lost = f"the process ended (exit status {process.returncode}) in this cell or hung in it"
    rest = [number for number in numbers if number > len(found)]
    found += [CellResult(n, "failed", error=lost if n == rest[0] else "not run: the process was lost") for n in rest]
    return NotebookResult(_name(path), found)


def _output(log: Path | None):  # type: ignore[no-untyped-def]  # returns a file in both cases
    return open(os.devnull if log is None else log, "w", encoding="utf-8")


def _devices(path: Path, devices: int, kind: str) -> dict[str, str]:
    """Returns the simulated devices; none for a notebook that configures its own before the first operation."""
    text = path.read_text(encoding="utf-8")
    if "set_logical_device_configuration" in text or "set_virtual_device_configuration" in text:
        return {}
    return {"MIRRORED_VIRTUAL_DEVICES": str(devices), "MIRRORED_VIRTUAL_KIND": kind}


def _environment(writer: int) -> dict[str, str]:
    folders = [str(_TOOLS), str(_TOOLS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(one for one in folders if one),
        "MPLBACKEND": "Agg",
        "NOTEBOOK_RESULTS": str(writer),
        "PYTHONUNBUFFERED": "1",
    }


def _name(path: Path) -> str:
    return "/".join(path.absolute().with_suffix("").parts[-2:])


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("notebooks", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--seconds", type=click.FloatRange(min=1), default=120.0, help="Time limit of a cell.")
@click.option("--devices", type=click.IntRange(min=1), default=4, help="Number of simulated CPU devices.")
@click.option("--kind", type=click.Choice(["CPU", "GPU"]), default="GPU", help="The device type that they simulate.")
@click.option("--examples", type=click.IntRange(min=1), default=3000, help="Maximum number of examples of a data set.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="JSON file for the results.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Folder for the output of cells.")
@click.option(
    "--compare", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Compare with a recording."
)
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), help="File for TensorFlow's results.")
@click.option(
    "--tensorflow", type=click.Path(path_type=Path, exists=True), help="Python with TensorFlow, for --record."
)
@click.option("-v", "--verbose", is_flag=True, help="Show the tracebacks of failed cells.")
def main(
    notebooks: Sequence[Path],
    seconds: float,
    devices: int,
    kind: str,
    examples: int,
    json_path: Path | None,
    logs: Path | None,
    compare: Path | None,
    record: Path | None,
    tensorflow: Path | None,
    verbose: bool,
) -> None:
    """Run NOTEBOOKS on mirrored.tf and show which cells pass.

    The exit status is 1 if a cell in scope fails, or if a result differs from the recording.
    """
    console = Console()
    if record is not None:
        if tensorflow is None:
            raise click.UsageError("--record requires --tensorflow PYTHON")
        options = {"seconds": seconds, "devices": devices, "kind": kind, "examples": examples, "log": None}
        record_notebooks(notebooks, record, console, tensorflow=tensorflow, **options)
        return
    results = []
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    for path in notebooks:
        started = time.monotonic()
        log = None if logs is None else logs / f"{_name(path).replace('/', '_')}.txt"
        try:
            result = run_notebook(path, seconds=seconds, devices=devices, kind=kind, examples=examples, log=log)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        counts = f"{result.count('passed')} passed, {result.count('failed')} failed"
        console.print(f"{result.name}: {counts} ({time.monotonic() - started:.0f} s)", highlight=False)
        results.append(result)
    show(results, console, verbose=verbose)
    if json_path is not None:
        json_path.write_text(json.dumps([result.as_json() for result in results], indent=1), encoding="utf-8")
    differs = False
    if compare is not None:
        recording: Recording = json.loads(compare.read_text(encoding="utf-8"))
        compared = [comparison.compare(result, recording.get(result.name, {})) for result in results]
        show_comparisons(compared, console)
        differs = any(one.differences for one in compared)
    sys.exit(differs or any(result.count("failed") for result in results))


def record_notebooks(
    notebooks: Sequence[Path], target: Path, console: Console, *, tensorflow: Path, **options: Any
) -> None:
    """Runs notebooks twice on TensorFlow and keeps the results that both runs compute.

    Args:
        notebooks: The notebook files.
        target: A JSON file; it keeps the entries of notebooks that are not run again.
        console: The console for progress.
        tensorflow: A Python with TensorFlow.
        **options: Options of `run_notebook`.
    """
    recording: Recording = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    for path in notebooks:
        runs = [run_notebook(path, tensorflow=tensorflow, **options) for _ in range(2)]
        recording[runs[0].name] = kept = comparison.deterministic(runs)
        passed = runs[0].count("passed")
        console.print(f"{runs[0].name}: {passed} cells pass, {len(kept)} have deterministic results", highlight=False)
        target.write_text(json.dumps(recording, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
