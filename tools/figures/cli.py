"""The command line of tools/figures.py."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from figures.source import SOURCES, drawn
from figures.timeline import source_of_log

_DESCRIPTION: Final = """\
What the workers of an elastic job do when one of them is killed, from the log of a real job. The others leave the
epoch, form the next one, restore the newest snapshot, and train. The replacement starts meanwhile; when it is ready,
all workers form a third epoch with it.
"""


def stale() -> list[str]:
    """Returns the names of the figures whose SVG file differs from what their TOML file describes, or has none."""
    expected = {path.with_suffix(".svg"): drawn(path) for path in SOURCES.glob("*.toml")}
    found = {path: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.svg")}
    return sorted(path.name for path in expected.keys() | found if expected.get(path) != found.get(path))


def write_timeline(log: Path, failure: float | None, note: str) -> None:
    """Writes the source of the figure of a recovery from the log of a job in which one worker was killed."""
    title = "A worker of an elastic job is killed and replaced"
    text = source_of_log(log, failure, title, f"{_DESCRIPTION}{note}".strip())
    (SOURCES / "elastic_recovery.toml").write_text(text, encoding="utf-8")


def main() -> None:
    """Writes the figures, or compares them with their sources."""
    parser = argparse.ArgumentParser(description="Writes docs/figures/*.svg from docs/figures/*.toml.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure differs from its source")
    parser.add_argument("--from-log", type=Path, help="an elastic.jsonl: write elastic_recovery.toml from it")
    parser.add_argument("--failure", type=float, help="with --from-log: the time of the kill; default: the first loss")
    parser.add_argument("--note", default="", help="with --from-log: the end of the description, about the machine")
    options = parser.parse_args()
    if options.from_log is not None:
        write_timeline(options.from_log, options.failure, options.note)
    if options.check:
        different = stale()
        for name in different:
            print(f"docs/figures/{name} differs from its source: run python tools/figures.py")
        sys.exit(bool(different))
    for path in sorted(SOURCES.glob("*.toml")):
        path.with_suffix(".svg").write_text(drawn(path), encoding="utf-8")
