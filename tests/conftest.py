"""What every test of the suite gets: simulated devices, the fixtures `way` and `strategy` (see mirrored.testing)."""

from __future__ import annotations

pytest_plugins = ["mirrored.testing.plugin", "pytester"]
