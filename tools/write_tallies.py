#!/usr/bin/env python
"""Writes `docs/tf_programs.md`: how many cells of TensorFlow's notebooks, and how many public programs, run.

    python tools/write_tallies.py

The figures are records of runs: `tools/notebook/tallies.json` (of `tools/run_notebook.py`) and
`tools/public_programs/results.json`, `results_second.json` and `results_third.json` (of
`tools/run_public_programs.py --record first`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

_TOOLS: Final = Path(__file__).parent
PAGE: Final = _TOOLS.parent / "docs" / "tf_programs.md"
_SELECTION: Final = _TOOLS / "public_programs" / "selection.json"
_RESULTS: Final = {
    "first": _TOOLS / "public_programs" / "results.json",
    "second": _TOOLS / "public_programs" / "results_second.json",
    "third": _TOOLS / "public_programs" / "results_third.json",
}
_CELLS: Final = ("cells", "passed", "failed", "out of scope")
_TWO_RUNS: Final = (
    "cells", "first run: passed", "failed", "out of scope", "second run: passed", "failed", "out of scope",
)  # fmt: skip


def page() -> str:
    """Returns the text of the page."""
    notebooks = json.loads((_TOOLS / "notebook" / "tallies.json").read_text(encoding="utf-8"))
    programs = {part: json.loads(path.read_text(encoding="utf-8")) for part, path in _RESULTS.items() if path.exists()}
    parts = [
        "# TensorFlow's notebooks and public programs on `mirrored.tf`",
        "Written by `python tools/write_tallies.py` from records of runs. What users change, what differs and what is "
        "missing: [Coming from TensorFlow](coming_from_tensorflow.md). TensorFlow's unit tests: "
        "[tf_conformance.md](tf_conformance.md).",
        *(_programs(programs) if programs else []),
        *_notebooks(notebooks),
    ]
    return "\n\n".join(parts) + "\n"


def _programs(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    first = {name: error for record in records.values() for name, error in record["first"]["outcomes"].items()}
    after = {name: error for record in records.values() for name, error in record["after"]["outcomes"].items()}
    causes = {name: cause for record in records.values() for name, cause in record["causes"].items()}
    rows = [
        (f"`{name}`", error or "passes", after.get(name, "not run again") or "passes", causes.get(name, ""))
        for name, error in first.items()
    ]
    parts = "; ".join(
        f"{which} selection: {_rate(record['first']['outcomes'])} at the first try "
        f"({record['first']['date']}, {record['first']['commit']}), {_rate(record['after']['outcomes'])} after fixes "
        f"({record['after']['date']}, {record['after']['commit']})"
        for which, record in records.items()
    )
    selection = json.loads(_SELECTION.read_text(encoding="utf-8"))
    left_out = "; ".join(f"{part} selection: {len(selection[part]['left_out'])}" for part in records if part != "first")
    return [
        "## Public programs",
        f"**{_rate(first)} public programs run at the first try; {_rate(after)} after fixes** ({parts}). The programs "
        "use `MirroredStrategy` in a custom loop or `fit`. `tools/public_programs/selection.json` names them with "
        "repository, commit and path, by queries and criteria that were fixed before anybody read a program; one "
        "criterion is that the program runs on TensorFlow 2.21. They are not part of this project. One import changes, "
        "arrays of the same shape replace data that would be downloaded, and epochs and steps of `fit` are bounded. In "
        "programs of the second and third selections, recorded substitutions also replace names that TensorFlow 2.21 "
        "has renamed, missing data, and sizes:",
        "\n".join(f"    python tools/run_public_programs.py --sources FOLDER --part {part}" for part in records),
        f"First selection: {selection['examined']}. Repositories and programs that are left out, each for a recorded "
        f"reason: {left_out}.",
        _table(("program", "first try", "after fixes", "cause"), rows),
    ]


def _rate(outcomes: Mapping[str, str]) -> str:
    return f"{sum(not error for error in outcomes.values())} of {len(outcomes)}"


def _notebooks(record: Mapping[str, Any]) -> list[str]:
    goal, developed, unseen = record["goal"], record["developed_with"], record["unseen"]
    _, passed, failed, _ = _total(goal)
    shown = f"{passed} of the {passed + failed} cells in scope pass ({passed / (passed + failed):.1%})"
    _, first, first_failed, _, second, second_failed, _ = _total(unseen)
    return [
        "## TensorFlow's notebooks",
        "`tools/run_notebook.py` runs notebooks cell by cell on simulated devices. It imports "
        "`mirrored.tf` in place of "
        "TensorFlow, and generates arrays of the same shape (at most 3,000 examples) in place of "
        "datasets that would be "
        "downloaded:",
        "    python tools/run_notebook.py site/en/guide/*.ipynb site/en/tutorials/distribute/*.ipynb "
        "--json results.json",
        f"{goal['date']}, {goal['environment']}: **{shown}**. `multi_worker_with_ctl` trains on more examples than the "
        "default, hence `--examples 12000 --seconds 400` for it.",
        _cells(goal, _CELLS),
        "The following notebooks were run to find failures, and again after fixes. They were chosen "
        "for their topics, and "
        "many fixes were developed with them, so the result does not measure how general `mirrored.tf` is.",
        _cells(developed, _CELLS),
        f"**Generality.** Of {len(unseen['cells'])} notebooks that had not been used in development "
        f"({unseen['environment']}), {first} of {first + first_failed} cells in scope passed at the first run "
        f"({first / (first + first_failed):.1%}), and {second} of {second + second_failed} after "
        "features of general use "
        f"were added ({second / (second + second_failed):.1%}). Most cells out of scope need data "
        "that is not available.",
        _cells(unseen, _TWO_RUNS),
        "Failures and their causes at the time of these runs:",
        _table(("cells", "cause"), record["causes"].items()),
        record["out_of_scope"],
    ]


def _total(record: Mapping[str, Any]) -> list[int]:
    return [sum(column) for column in zip(*record["cells"].values(), strict=True)]


def _cells(record: Mapping[str, Any], columns: Sequence[str]) -> str:
    rows = [(f"`{name}`", *map(str, counts)) for name, counts in record["cells"].items()]
    total = (f"**{len(rows)} notebooks**", *(f"**{count}**" for count in _total(record)))
    return _table(("notebook", *columns), [*rows, total])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *(["\\|".join(cell.split("|")) for cell in row] for row in rows)]
    return "\n".join(
        "| " + " | ".join(line) + " |" if line[0] != "---" else "|" + "|".join(line) + "|" for line in lines
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Write docs/tf_programs.md."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
