"""The command line program `mirrored`, with the subcommands devices, demo, new, run, doctor and plan."""

from __future__ import annotations

from mirrored.cli.main import main as main
