"""Creates a project from the templates, completely or not at all."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import string
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from mirrored.errors import ArgumentError

_CALLED: Final = "mirrored new"
_TEMPLATES: Final = resources.files("mirrored.cli.new") / "templates"


@dataclasses.dataclass(frozen=True)
class Framework:
    """A library, such as Flax, that the created project can use.

    Attributes:
        title: Its name in prose.
        extras: The extras of mirrored that the project needs.
        model: The name in ``train.py`` that defines the model.
    """

    title: str
    extras: tuple[str, ...]
    model: str


FRAMEWORKS: Final = {
    "jax": Framework("plain JAX", ("checkpoint", "data"), "make_model"),
    "keras": Framework("Keras 3", ("checkpoint", "data", "keras"), "make_model"),
    "nnx": Framework("Flax NNX", ("checkpoint", "data", "flax"), "Model"),
    "tf": Framework("TensorFlow's names, by `mirrored.tf`", ("autograph", "checkpoint", "data", "keras"), "make_model"),
}


def create_project(directory: Path, framework: str) -> list[Path]:
    """Creates a project in a new or empty folder.

    The files of a new folder are written to a folder beside it, which is renamed at the end. An empty folder is filled,
    and not replaced: it can be the working directory of a shell, a mount point, or the target of a link. An error
    leaves no part of a project.

    Args:
        directory: The folder of the project. Its parent must exist.
        framework: A key of `FRAMEWORKS`.

    Returns:
        The paths of the files.

    Raises:
        ArgumentError: The folder is not empty, is a file, or cannot be created.
    """
    directory = directory.absolute()
    _check(directory)
    files = _files(os.path.basename(os.path.abspath(directory)), framework)
    try:
        (_fill if directory.is_dir() else _create)(directory, files)
    except OSError as error:
        raise ArgumentError(
            _CALLED,
            found=f"{directory} cannot be created: {error}",
            rule="the folder of the project must be in an existing folder in which files can be created",
            remedy="create its parent folder, or choose another one",
        ) from error
    return sorted(directory.iterdir())


def _create(directory: Path, files: Mapping[str, str]) -> None:
    """Creates a folder with the given files."""
    written = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, text in files.items():
            (written / name).write_text(text, encoding="utf-8")
        written.chmod(0o755)  # `mkdtemp` makes folders that only their owner can read
        written.rename(directory)
    except BaseException:
        shutil.rmtree(written, ignore_errors=True)
        raise


def _fill(directory: Path, files: Mapping[str, str]) -> None:
    """Writes the given files into an empty folder; raises an error if another program has created one of them."""
    written: list[Path] = []
    try:
        for name, text in files.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                written.append(directory / name)
                file.write(text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _check(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if directory.exists():
        raise ArgumentError(
            _CALLED,
            found=f"{directory} exists and is not an empty folder",
            rule="the folder of a new project must be new or empty, so that no file is replaced",
            remedy="choose another folder",
        )


def _files(name: str, framework: str) -> dict[str, str]:
    """Returns the contents of the project's files by name."""
    chosen = FRAMEWORKS[framework]
    values = {
        "name": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "training",
        "framework": chosen.title,
        "extras": ",".join(chosen.extras),
        "model": chosen.model,
    }
    filled = {file: string.Template(_template(file)).substitute(values) for file in ("README.md", "pyproject.toml")}
    return {
        **filled,
        ".gitignore": _template("gitignore"),
        "test_train.py": _template("test_train.py"),
        "train.py": _template(f"train_{framework}.py"),
    }


def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
