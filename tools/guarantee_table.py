#!/usr/bin/env python
"""Writes docs/guarantees.md: which guarantees hold for which update path, execution mode, device assignment and source.

    python tools/guarantee_table.py           # writes the page
    python tools/guarantee_table.py --check   # exit status 1 if the page differs

The page is generated from the tables that the tests use: tests/guarantees/cells.py and rows.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from guarantees.cells import CELLS, GUARANTEES, LAYOUTS, PATHS, REFUSED, UNMET, Cell  # noqa: E402
from guarantees.rows import FACTORS, ROWS  # noqa: E402

_PAGE: Final = ROOT / "docs" / "guarantees.md"
_MODES: Final = {
    "eager": "Replica functions run one after the other, one replica per device; in 8/3 three, three and two",
    "compiled": "`mirrored.function`, one replica per device",
    "virtual replicas": "`mirrored.function`, several replicas per device",
    "steps_per_call": "`mirrored.function(steps_per_call=2)`; `steps_per_execution=2` for Keras `fit`",
    "two processes": "`MultiWorkerMirroredStrategy`, half of the devices in each process",
}
# How the page names factors of the tests.
_FACTOR_NAMES: Final = {"way": "execution mode", "layout": "device assignment"}


def page() -> str:
    """Returns the text of the page."""
    return "\n".join([*_introduction(), *_matrix(), *_unmet(), *_sources()]) + "\n"


def _introduction() -> Iterator[str]:
    refused = sum(cell.refusal is not None for cell in CELLS)
    yield "# Guarantee matrix"
    yield ""
    yield "`tools/guarantee_table.py` generates this page from the tables that the tests use; do not edit it."
    yield ""
    yield f"Of the {len(CELLS)} cells below, {refused} are refused. Each of the others trains a model for some epochs,"
    yield "with an uneven last batch."
    yield "`make guarantees` tests these guarantees in every cell; `make test` runs a part of the cells:"
    yield ""
    yield "| guarantee | checked property |"
    yield "|---|---|"
    for name, description in GUARANTEES.items():
        yield f"| {name} | {description} |"
    yield ""
    yield "Ctrl-C ends a job of several processes as a whole, so `interrupt` is checked in one process."
    yield ""


def _matrix() -> Iterator[str]:
    notes = {key: number for number, key in enumerate(REFUSED, 1)}
    yield "## Update paths, execution modes, device assignments"
    yield ""
    yield "A device assignment is replicas/devices. `x`: all guarantees hold; a number: see Refusals; a letter: defect."
    for mode, layouts in LAYOUTS.items():
        yield ""
        yield f"### {mode}"
        yield ""
        yield f"{_MODES[mode]}."
        yield ""
        yield "| update path | " + " | ".join(f"{replicas}/{devices}" for devices, replicas in layouts) + " |"
        yield "|---|" + "---|" * len(layouts)
        for path in PATHS:
            mark = f"[{notes[path, mode]}]" if (path, mode) in notes else None
            marks = [mark or _defects(Cell(path, mode, *layout)) for layout in layouts]
            yield f"| {path} | " + " | ".join(marks) + " |"
    yield ""
    yield "## Refusals"
    yield ""
    if not REFUSED:
        yield "None. A test checks that their number does not rise."
    for number, ((path, mode), refusal) in enumerate(REFUSED.items(), 1):
        yield f"{number}. {path}, {mode}: {refusal.reason}"


def _defects(cell: Cell) -> str:
    """Returns the letters of the guarantees that do not hold for the cell; "x" if all hold."""
    return "".join(chr(97 + number) for number, one in enumerate(UNMET) if one.holds_for(cell)) or "x"


def _unmet() -> Iterator[str]:
    yield ""
    yield "## Guarantees that do not hold yet"
    yield ""
    for number, one in enumerate(UNMET):
        yield f"- {chr(97 + number)} ({one.guarantee}): {one.reason}"
    if not UNMET:
        yield "None. A test checks that their number does not rise."


def _sources() -> Iterator[str]:
    yield ""
    yield "## Data sources"
    yield ""
    yield f"{len(ROWS)} rows cover every combination of values of any three of these factors. Each row trains for"
    yield "two epochs, and must use every example exactly once, with the losses and weights of one device:"
    yield ""
    yield "| factor | values |"
    yield "|---|---|"
    for name, values in FACTORS.items():
        shown = (f"{value[1]}/{value[0]}" if isinstance(value, tuple) else str(value) for value in values)
        yield f"| {_FACTOR_NAMES.get(name, name.replace('_', ' '))} | {', '.join(shown)} |"
    yield ""
    yield 'The steps of one call have one shape, so `steps_per_call` is not combined with `last_batch="split"`.'
    yield "Keras `fit` reads its data through Keras' own adapters. If PyTorch and `datasets` are not installed, objects"
    yield "with the same interface replace them; `make guarantees-sources` installs both in a separate"
    yield "environment."


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Compare with the page instead of writing it.")
def main(check: bool) -> None:
    """Generate docs/guarantees.md from the tables of the tests."""
    if not check:
        _PAGE.write_text(page(), encoding="utf-8")
        return
    if not _PAGE.exists() or _PAGE.read_text(encoding="utf-8") != page():
        raise click.ClickException(
            "docs/guarantees.md differs from the generated page: run python tools/guarantee_table.py"
        )


if __name__ == "__main__":
    main()
