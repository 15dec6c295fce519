"""Runs mypy and basedpyright over programs that use mirrored, right ones and wrong ones.

    python tools/check_user_programs.py

A checker must report every line of ``tests/user_programs`` with the comment ``# error``, and no other line: a misspelt
name or argument that no checker reports is found only when the program runs, and an error in a right program keeps its
author from using checkers at all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src"
PROGRAMS: Final = ROOT / "tests" / "user_programs"
MARK: Final = re.compile(r"  # error\b")


class Line(NamedTuple):
    """A line of a program."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.number}"


def marked(programs: Path = PROGRAMS) -> set[Line]:
    """Returns the lines that say that they are wrong."""
    return {
        Line(path, number)
        for path in sorted(programs.rglob("*.py"))
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MARK.search(text)
    }


def by_mypy() -> dict[Line, str]:
    """Returns the first error that ``mypy --strict`` reports for each line."""
    options = "--strict --config-file= --output=json --no-error-summary --explicit-package-bases".split()
    options.append("--follow-imports=silent")  # `make lint` checks the package itself
    options += ["--cache-dir", str(ROOT / ".mypy_cache" / "user_programs")]
    command = [sys.executable, "-m", "mypy", *options, str(PROGRAMS)]
    path = os.pathsep.join(map(str, (SOURCE, PROGRAMS)))
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"MYPYPATH": path}
    )
    if ran.returncode not in (0, 1):
        raise SystemExit(f"mypy failed:\n{ran.stdout}{ran.stderr}")
    found: dict[Line, str] = {}
    for text in ran.stdout.splitlines():
        one = json.loads(text)
        if one["severity"] == "error":
            found.setdefault(Line((ROOT / one["file"]).resolve(), one["line"]), one["message"])
    return found


def by_basedpyright() -> dict[Line, str]:
    """Returns the first error that basedpyright, in the mode "standard", reports for each line."""
    options = {"include": [str(PROGRAMS)], "extraPaths": [str(SOURCE)], "typeCheckingMode": "standard"}
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "pyrightconfig.json")
        configuration.write_text(json.dumps(options), encoding="utf-8")
        command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(configuration)]
        command += ["--pythonpath", sys.executable]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if ran.returncode not in (0, 1):
        raise SystemExit(f"basedpyright failed:\n{ran.stdout}{ran.stderr}")
    found: dict[Line, str] = {}
    for one in json.loads(ran.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = Line(Path(one["file"]).resolve(), one["range"]["start"]["line"] + 1)
            found.setdefault(line, one["message"].partition("\n")[0])
    return found


CHECKERS: Final[dict[str, Callable[[], dict[Line, str]]]] = {"mypy": by_mypy, "basedpyright": by_basedpyright}


def complaints(checker: str, expected: set[Line], found: dict[Line, str]) -> list[str]:
    """Returns one line per wrong line without an error, and per error in a right line."""
    missed = [f"{line}: {checker} reports no error" for line in sorted(expected - found.keys())]
    return missed + [f"{line}: {checker} reports: {found[line]}" for line in sorted(found.keys() - expected)]


def main() -> int:
    """Prints what each checker misses or reports too much; returns 1 if there is any."""
    expected, failed = marked(), False
    programs = len(list(PROGRAMS.rglob("*.py")))
    for name, check in CHECKERS.items():
        lines = complaints(name, expected, check())
        failed = failed or bool(lines)
        print(
            "\n".join(lines) if lines else f"{name}: {len(expected)} wrong lines found, no others, {programs} programs"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
