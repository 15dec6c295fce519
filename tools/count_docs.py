#!/usr/bin/env python
"""Counts the pages, programs, documented names and figures of the documentation.

    python tools/count_docs.py             # prints the counts
    python tools/count_docs.py --write     # and writes them into the table of `docs/is_this_for_me.md`

The table shows them beside those of other projects; `tests/tools/test_count_docs.py` compares it with the counts.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "is_this_for_me.md"
EXAMPLES: Final = DOCS.parent / "examples" / "README.md"
_EXAMPLE: Final = re.compile(r"^## \[\w+\.py\]", re.MULTILINE)
_IMAGE: Final = re.compile(r"!\[[^\]]*\]\(|<img |^\.\. (?:image|figure)::", re.MULTILINE)
_DIRECTIVE: Final = re.compile(r"^\.\. auto(?:class|function):: (\w+)$", re.MULTILINE)
_MODULE: Final = re.compile(r"^\.\. public-names:: (\S+)$", re.MULTILINE)


def _sources(*suffixes: str) -> list[Path]:
    found = (path for path in DOCS.rglob("*") if path.suffix in suffixes)
    return [path for path in sorted(found) if "_extensions" not in path.relative_to(DOCS).parts]


def tutorials() -> list[Path]:
    """Returns the tutorials: Python files that the build executes."""
    return sorted((DOCS / "tutorials").glob("*.py"))


def documented() -> list[object]:
    """Returns what the API reference documents, except the table of the names of `mirrored.tf`."""
    mirrored = importlib.import_module("mirrored")
    found: list[object] = []
    for page in _sources(".rst"):
        text = page.read_text(encoding="utf-8")
        found += [getattr(mirrored, name) for name in _DIRECTIVE.findall(text)]
        for module in map(importlib.import_module, _MODULE.findall(text)):
            found += [getattr(module, name) for name in _public_names(module)]
    return found


def _public_names(module: types.ModuleType) -> list[str]:
    """Returns the names in `__all__`, or the classes and functions that a module defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [name for name in defined if not name.startswith("_")]


def has_example(value: object) -> bool:
    """Returns whether the docstring of a class or function has an example."""
    text = (inspect.getdoc(value) or "") if callable(value) else ""
    return ">>> " in text or "```" in text


def counts() -> dict[str, int]:
    """Returns the counts, by the rows of the table."""
    names = documented()
    pages = _sources(".md", ".rst")
    text = "\n".join(page.read_text(encoding="utf-8") for page in [*pages, *tutorials(), EXAMPLES])
    return {
        "pages": len(pages) + len(tutorials()),
        "tutorials that are programs or notebooks": len(tutorials()),
        "of these, executed when the site is built": len(tutorials()),
        "example programs besides": len(_EXAMPLE.findall(EXAMPLES.read_text(encoding="utf-8"))),
        "names in the API reference": len(names),
        "of these, with an example in the docstring": sum(map(has_example, names)),
        "pages about one error or warning": len(list((DOCS / "errors").glob("*.md"))),
        "pages about concepts or design": len(list((DOCS / "design").glob("*.md"))) - 1,  # Without the index.
        "figures in pages": len(_IMAGE.findall(text)),
    }


def written(page: str, found: dict[str, int]) -> str:
    """Returns the page with the counts in the first column of its table."""
    for name, count in found.items():
        page, replaced = re.subn(rf"^(\| {re.escape(name)} \|) \d+ \|", rf"\1 {count} |", page, flags=re.MULTILINE)
        if replaced != 1:
            raise ValueError(f"the table has {replaced} rows {name!r}")
    return page


def main() -> None:
    """Prints the counts, and writes them with the option ``--write``."""
    found = counts()
    for name, count in found.items():
        sys.stdout.write(f"{name}: {count}\n")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
