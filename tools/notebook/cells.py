"""Reads and translates the code cells of a notebook."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Final

_MODULE: Final = "mirrored.tf"
_IMPORTS: Final = (
    (re.compile(r"^(\s*)import tensorflow as (\w+)"), rf"\1import {_MODULE} as \2"),
    (re.compile(r"^(\s*)import tensorflow\s*$"), rf"\1import {_MODULE} as tensorflow"),
    (re.compile(r"^(\s*)import tensorflow\.(?!python\b)([\w.]+) as (\w+)"), rf"\1import {_MODULE}.\2 as \3"),
    (re.compile(r"^(\s*)from tensorflow import "), rf"\1from {_MODULE} import "),
    (re.compile(r"^(\s*)from tensorflow\.(?!python\b)([\w.]+) import "), rf"\1from {_MODULE}.\2 import "),
)
_MAGIC: Final = re.compile(r"^(\s*)(?:[\w, ]+=\s*)?[!%](?!=)")
_SHELL_CELL: Final = re.compile(r"^%%(bash|sh|script|html|javascript|js|capture_shell)\b")
_WRITE_CELL: Final = re.compile(r"^%%writefile\s+(?:-a\s+)?(\S+)")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One code cell, ready to run.

    Attributes:
        number: Its number, counted from 1 over the code cells.
        source: Python code with the notebook's line numbers; for `writes` the text of the file.
        writes: The file that a ``%%writefile`` cell writes; None for others.
        only_shell: Whether it consists only of shell commands and magics.
        raises: Whether the notebook expects it to raise an error.
    """

    number: int
    source: str
    writes: str | None = None
    only_shell: bool = False
    raises: bool = False


def read_cells(path: Path, *, framework: str = _MODULE) -> list[Cell]:
    """Reads and translates the code cells of a notebook.

    Args:
        path: An ``.ipynb`` file.
        framework: ``mirrored.tf``, or ``tensorflow`` to keep the imports.

    Raises:
        ValueError: The file is not a notebook.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a notebook: {error!r}") from error
    return [_cell(number, cell, framework) for number, cell in enumerate(found, 1)]


def _cell(number: int, raw: dict[str, object], framework: str) -> Cell:
    source = raw["source"]
    text = source if isinstance(source, str) else "".join(source)  # type: ignore[arg-type]
    metadata = raw.get("metadata")
    tags = metadata.get("tags", []) if isinstance(metadata, dict) else []
    raises = "raises-exception" in tags
    first = _first_line(text)
    written = _WRITE_CELL.match(first)
    if written:
        body = text.partition(first)[2].lstrip("\n")
        return Cell(number, translate(body, framework), writes=written[1], raises=raises)
    if _SHELL_CELL.match(first):
        return Cell(number, "", only_shell=True, raises=raises)
    translated = translate(text, framework)
    return Cell(number, translated, only_shell=_is_empty(translated) and not _is_empty(text), raises=raises)


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _is_empty(text: str) -> bool:
    """Returns whether a text has no statement but `pass`; shell commands are not Python, so they count as content."""
    try:
        return all(isinstance(one, ast.Pass) for one in ast.parse(text).body)
    except SyntaxError:
        return False


def translate(text: str, framework: str = _MODULE) -> str:
    """Translates the text of a cell: imports of TensorFlow import `mirrored.tf`, magics become ``pass``.

    Lines keep their numbers, so that errors refer to the lines of the notebook.
    """
    lines: list[str] = []
    continues = False
    in_string = _lines_in_strings(text)
    for number, line in enumerate(text.splitlines(), 1):
        magic = _MAGIC.match(line) if number not in in_string else None
        if continues or magic:
            indent = "" if continues or magic is None else magic[1]
            lines.append("" if continues else f"{indent}pass")
            continues = line.rstrip().endswith("\\")
            continue
        lines.append(_imported(line) if framework == _MODULE else line)
    return "\n".join(lines) + "\n"


def _lines_in_strings(text: str) -> set[int]:
    """Returns the lines that begin inside a string or a bracket: a ``%`` there is text or an operator."""
    lines = text.splitlines()
    try:
        ast.parse(text)
    except SyntaxError:
        plain = "\n".join("pass" if re.match(r"^[!%]", line) else line for line in lines)
    else:
        return set(range(1, len(lines) + 1))  # treats the whole text as Python
    try:
        tree = ast.parse(plain)
    except SyntaxError:
        return set()
    spans = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and node.end_lineno is not None]
    return {line for node in spans for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)}


def _imported(line: str) -> str:
    for pattern, replacement in _IMPORTS:
        if pattern.match(line):
            return pattern.sub(replacement, line)
    return line


def names_of(source: str) -> tuple[set[str], set[str]]:
    """Returns the names that a cell uses, and the names that it defines."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set(), set()
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update((one.asname or one.name).partition(".")[0] for one in node.names)
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}, defined
