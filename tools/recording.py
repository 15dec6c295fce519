"""Draws docs/recordings/first_training.svg: a terminal in which a first training runs, with the real output.

    python tools/recording.py

The commands run in a temporary folder, with the `mirrored` of this environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

FIGURE = Path(__file__).parents[1] / "docs" / "recordings" / "first_training.svg"
COMMANDS = (
    "mirrored new spirals",
    "mirrored run --workers 2 --replicas-per-worker 2 spirals/train.py",
    "mirrored devices CPU:0 --replicas 4",
)
WIDTH = 96


def record(folder: Path) -> str:
    """Runs the commands in a folder; returns the terminal as SVG."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)
    environment = {**os.environ, "COLUMNS": str(WIDTH), "JAX_PLATFORMS": "cpu", "TERM": "dumb"}
    for command in COMMANDS:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        program = [sys.executable, "-m", "mirrored.cli", *command.split()[1:]]
        done = subprocess.run(
            program, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True
        )
        console.print(Text(done.stdout.rstrip()))
        console.print()
    return without_fonts(console.export_svg(title="mirrored", unique_id="terminal"))


def without_fonts(svg: str) -> str:
    """Removes the fonts that rich loads from a server; a figure must not need the network."""
    svg = re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace").replace("font-family: arial", "font-family: sans-serif")


def main() -> None:
    """Writes the figure."""
    with tempfile.TemporaryDirectory() as folder:
        FIGURE.write_text(record(Path(folder)), encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
