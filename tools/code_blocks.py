#!/usr/bin/env python
"""Lists the code blocks of the README and of the pages in docs/, with their languages.

    python tools/code_blocks.py

`tests/test_code_blocks.py` executes them. A block that cannot run as it stands has the reason in a comment above it:

    <!-- excerpt: the traceback of a program that the page does not show -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(.*?)\s*$")
_EXCERPT: Final = re.compile(r"^<!-- excerpt: (.*) -->$")
# What an indented line continues instead of starting a block: an item of a list, or a definition.
_ITEM: Final = re.compile(r"^\s*(?:[-*+:]|\d+\.)\s")


@dataclass(frozen=True)
class CodeBlock:
    """A code block: its place, its language ("" for an indented block), and why it is an excerpt, if it is one."""

    page: Path
    line: int
    language: str
    text: str
    excerpt: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Returns the pages that users and contributors read."""
    docs = sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".rst"})
    docs += sorted((ROOT / "docs" / "tutorials").glob("*.py"))
    return [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS", "examples/README")), *docs]


def blocks_of(page: Path) -> list[CodeBlock]:
    """Returns the code blocks of a page in order. Directives like ``{toctree}`` are no code.

    Of a tutorial, these are the blocks in its Markdown cells.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    if page.suffix == ".py":
        lines = [line[2:] if line.startswith("#") else "code" for line in lines]
    found = list(_fenced(page, lines))
    fenced = {number for block in found for number in range(block.line, block.line + block.text.count("\n") + 2)}
    if page.suffix == ".md":
        found += _indented(page, [("`" if number in fenced else line) for number, line in enumerate(lines, 1)])
    return sorted((block for block in found if not block.language.startswith("{")), key=lambda block: block.line)


def _fenced(page: Path, lines: list[str]) -> Iterator[CodeBlock]:
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened = (number, fence[1], fence[2])
        elif fence[1].startswith(opened[1]) and not fence[2]:
            start, _, language = opened
            text = "".join(f"{one}\n" for one in lines[start : number - 1])
            yield CodeBlock(page, start, language, text, _excerpt(lines, start))
            opened = None
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the code block has no end")


def _indented(page: Path, lines: list[str]) -> Iterator[CodeBlock]:
    """Yields the indented blocks: lines of four spaces or more after a blank line, outside of lists."""
    above = ""  # The last line that is not indented.
    block: list[str] = []
    start = 0
    for number, line in enumerate([*lines, "end"], 1):
        code = line.startswith("    ") and not _ITEM.match(above)
        if code and (block or not lines[number - 2].strip()):
            start = start if block else number
            block.append(line[4:])
        elif block and not line.strip():
            block.append("")
        elif line.strip():
            if block:
                yield CodeBlock(page, start, "", "\n".join(block).rstrip() + "\n", _excerpt(lines, start))
                block = []
            above = above if line.startswith("  ") else line


def _excerpt(lines: list[str], start: int) -> str | None:
    """Returns the reason in the comment above a block, if there is one."""
    above = [line for line in lines[: start - 1] if line.strip()][-1:]
    comment = _EXCERPT.match(above[0]) if above else None
    return None if comment is None else comment[1]


def main() -> None:
    """Prints each block's place, language and first line."""
    for page in pages():
        for block in blocks_of(page):
            note = "" if block.excerpt is None else f"  (excerpt: {block.excerpt})"
            sys.stdout.write(f"{block} {block.language or 'indented'}: {block.text.splitlines()[0]}{note}\n")


if __name__ == "__main__":
    main()
