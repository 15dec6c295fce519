"""The command `mirrored`: devices, demo."""

from __future__ import annotations

from mirrored.cli.main import main as main
