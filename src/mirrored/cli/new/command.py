"""Implements the command `mirrored new`: creates the project, and prints what to do next."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from mirrored.cli.new.project import create_project


def run_new(directory: Path, framework: str, *, as_json: bool) -> None:
    """Creates a project and prints its files, with the commands that train and test it.

    Args:
        directory: The folder of the project, which must be new or empty.
        framework: ``"jax"``, ``"keras"``, ``"nnx"`` or ``"tf"``.
        as_json: Whether to print JSON.

    Raises:
        ArgumentError: The project cannot be created there.
    """
    files = create_project(directory, framework)
    if as_json:
        names = [path.name for path in files]
        print(json.dumps({"directory": str(directory), "framework": framework, "files": names}, indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"created {directory} with {', '.join(path.name for path in files)}", markup=False)
    console.print("\nnext:")
    for command in (
        f"cd {directory}",
        "python train.py",
        "mirrored run --workers 2 --replicas-per-worker 2 train.py",
        "python -m pytest",
    ):
        console.print(f"  {command}", markup=False)
