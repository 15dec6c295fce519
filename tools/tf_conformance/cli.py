"""The command line of the conformance tests."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from tf_conformance.processes import run_file
from tf_conformance.report import markdown, rate
from tf_conformance.results import Case, Judged, Outcome, Verdict, judge, tally
from tf_conformance.scope import DEFAULT, Scope

_WORKERS: Final = (1, 2)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("tests", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--files", multiple=True, help="Path or pattern below the folder (repeatable); default: the goal.")
@click.option("--only", default="*", help="Pattern of the tests to run, as CLASS.METHOD.")
@click.option("--workers", type=click.Choice(["1", "2", "both"]), default="both", help="Number of worker processes.")
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, help="Time limit per test in seconds.")
@click.option("--limit", type=click.FloatRange(min=1), default=580.0, help="Time limit per file in seconds.")
@click.option("--scope", "scope_path", type=click.Path(path_type=Path, exists=True), default=DEFAULT, help="The scope.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="JSON file for the results.")
@click.option("--again", is_flag=True, help="Judge the results of the JSON file again, without running tests.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Markdown file for the report.")
@click.option("--verbose", is_flag=True, help="Show the failures in scope.")
def main(
    tests: Path,
    files: tuple[str, ...],
    only: str,
    workers: str,
    seconds: float,
    limit: float,
    scope_path: Path,
    json_path: Path | None,
    again: bool,
    report: Path | None,
    verbose: bool,
) -> None:
    """Runs TensorFlow's unit tests in the folder TESTS (tensorflow/python) on mirrored.tf."""
    scope = Scope.load(scope_path)
    known = _read(json_path) if json_path is not None and json_path.exists() else {}
    selected = _selected(tests, files or scope.files)
    if not selected:
        raise click.UsageError(f"no test file below {tests} matches {' '.join(files or scope.files)}")
    judged: list[Judged] = []
    for file in selected:
        for number in _WORKERS if workers == "both" else (int(workers),):
            if not again and _needs(tests / file, number):
                known[file, number] = run_file(
                    tests.absolute(), file, workers=number, seconds=seconds, limit=limit, only=only
                )
                if json_path is not None:
                    _write(json_path, known)
            found = [judge(case, scope) for case in known.get((file, number), [])]
            judged += found
            if found:
                _show(file if number == 1 else f"{file}, {number} workers", found, verbose)
    _show("total", judged, False)
    if report is not None:
        report.write_text(markdown(judged, scope, _command(tests)), encoding="utf-8")


def _command(tests: Path) -> str:
    """The command line, without the folders of this machine."""
    arguments = [
        "TESTS" if one == str(tests) else Path(one).name if Path(one).is_absolute() else one for one in sys.argv[1:]
    ]
    return " ".join(["python tools/tf_conformance.py", *arguments])


def _selected(tests: Path, patterns: Sequence[str]) -> list[str]:
    """The paths of test files below the folder, in the order of the patterns."""
    found = sorted(path.relative_to(tests).as_posix() for path in tests.rglob("*_test.py"))
    chosen = [file for pattern in patterns for file in found if _matches(file, pattern)]
    return list(dict.fromkeys(chosen))


def _matches(file: str, pattern: str) -> bool:
    """Whether a pattern matches a path; `*` matches within one folder."""
    return file.count("/") == pattern.count("/") and fnmatch.fnmatchcase(file, pattern)


def _needs(path: Path, workers: int) -> bool:
    """Whether a file has tests for this number of workers."""
    text = path.read_text(encoding="utf-8")
    return workers == 1 or any(word in text for word in ("multi_worker", "multiworker", "two_replica_strategies"))


def _show(name: str, judged: Iterable[Judged], verbose: bool) -> None:
    """Prints the counts of a file, and its failures: the first case of every method and error."""
    found = list(judged)
    counts = tally(found)
    cases, methods = rate(counts.passed, counts.in_scope), rate(counts.methods_passed, counts.methods)
    whole = rate(counts.passed + counts.out_passed, counts.all)
    click.echo(f"{name:64} in scope {cases:22} methods {methods:20} all {whole}")
    shown: set[tuple[str, str]] = set()
    for one in found if verbose else ():
        key = (one.case.method, one.case.message[:60])
        if one.verdict is Verdict.FAILED and key not in shown:
            shown.add(key)
            click.echo(f"  {one.case.test}\n    " + one.case.message.replace("\n", "\n    "))


def _read(path: Path) -> dict[tuple[str, int], list[Case]]:
    """The cases of a JSON file, by file and number of workers."""
    found: dict[tuple[str, int], list[Case]] = {}
    for one in json.loads(path.read_text(encoding="utf-8")):
        case = Case(**{**one, "outcome": Outcome(one["outcome"])})
        found.setdefault((case.file, case.workers), []).append(case)
    return found


def _write(path: Path, known: dict[tuple[str, int], list[Case]]) -> None:
    path.write_text(json.dumps([dataclasses.asdict(case) for cases in known.values() for case in cases], indent=1))
