"""The command line of tools/figures.py."""

from __future__ import annotations

import argparse
import sys

from figures.source import SOURCES, drawn


def stale() -> list[str]:
    """Returns the names of the figures whose SVG file differs from what their TOML file describes, or has none."""
    expected = {path.with_suffix(".svg"): drawn(path) for path in SOURCES.glob("*.toml")}
    found = {path: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.svg")}
    return sorted(path.name for path in expected.keys() | found if expected.get(path) != found.get(path))


def main() -> None:
    """Writes the figures, or compares them with their sources."""
    parser = argparse.ArgumentParser(description="Writes docs/figures/*.svg from docs/figures/*.toml.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure differs from its source")
    if parser.parse_args().check:
        different = stale()
        for name in different:
            print(f"docs/figures/{name} differs from its source: run python tools/figures.py")
        sys.exit(bool(different))
    for path in sorted(SOURCES.glob("*.toml")):
        path.with_suffix(".svg").write_text(drawn(path), encoding="utf-8")
