"""What every test of the suite gets: simulated devices, the fixtures `way` and `strategy` (see mirrored.testing)."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

pytest_plugins = ["mirrored.testing.plugin", "pytester"]
