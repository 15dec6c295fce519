"""Reports attributes that are set on a layer to pending checkpoint restores, which may hold their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored.checkpoint.deferred import is_expected, state_came
from mirrored.integrations.keras.backend import load
from mirrored.patches import replace

keras = load()
_STATEFUL = (
    keras.Layer,
    keras.Variable,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    list,
    dict,
    tuple,
)


def connect_noticing() -> None:
    """Wraps `Layer.__setattr__`, so that a restored checkpoint can fill objects that a layer creates later."""
    replace("keras", keras.Layer, "__setattr__", _reporting(keras.Layer.__setattr__))


def _reporting(set_attribute: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(set_attribute)
    def reporting(self: Any, name: str, value: Any) -> None:
        set_attribute(self, name, value)
        if is_expected() and isinstance(value, _STATEFUL) and not name.startswith("_"):
            state_came(value)

    return reporting
