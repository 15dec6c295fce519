"""The command `mirrored`: devices, demo, run, doctor, plan."""

from __future__ import annotations

from mirrored.cli.main import main as main
