"""The figure of layers and packages, drawn from the levels that tests/test_layers.py enforces."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures.layout import Box


def levels_in(path: Path) -> list[list[str]]:
    """Returns the constant ``LEVELS`` of a Python file: the packages of each level, the lowest level first.

    The file is parsed, not imported, because it needs pytest. The order within a level is that of the file.

    Raises:
        ValueError: The file does not define it.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LEVELS":
            assert isinstance(node.value, ast.List)
            return [[ast.literal_eval(name) for name in level.elts] for level in node.value.elts]  # type: ignore[attr-defined]
    raise ValueError(f"{path} does not define LEVELS")


def boxes_of_levels(levels: Sequence[Sequence[str]], packages: Mapping[str, Mapping[str, Any]]) -> list[Box]:
    """Returns one row of boxes per level, the highest level first.

    Args:
        levels: The packages of each level, the lowest level first.
        packages: The purpose and the kind of box of each package.

    Raises:
        ValueError: The packages are not those of the levels.
    """
    different = packages.keys() ^ {name for level in levels for name in level}
    if different:
        raise ValueError(f"in the levels or in the figure alone: {', '.join(sorted(different))}")
    return [_row(number, level, packages) for number, level in reversed(list(enumerate(levels, 1)))]


def _row(number: int, level: Sequence[str], packages: Mapping[str, Mapping[str, Any]]) -> Box:
    label = Box(id=str(number), text=[str(number)], kind="none", share=0.05, centered=True)
    boxes = [_package(name, packages[name], is_alone=len(level) == 1) for name in level]
    return Box(kind="none", row=[label, Box(kind="none", row=boxes, gap=6)], gap=4)


def _package(name: str, package: Mapping[str, Any], *, is_alone: bool) -> Box:
    title, text = f"`{name or 'mirrored/__init__.py'}`", [str(package["purpose"])]
    if not is_alone:
        return Box(title=title, text=text, kind=str(package["kind"]), centered=True, is_tight=True)
    line = [Box(title=title, kind="none", share=0.4), Box(text=text, kind="none")]
    return Box(row=line, kind=str(package["kind"]), is_tight=True)
