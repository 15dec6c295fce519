"""Layers that tell a checkpoint of what is set in them after it was restored: a layer, an optimizer, a metric."""

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
    """Wraps `Layer.__setattr__`."""
    replace("keras", keras.Layer, "__setattr__", _telling(keras.Layer.__setattr__))


def _telling(set_attribute: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(set_attribute)
    def telling(self: Any, name: str, value: Any) -> None:
        set_attribute(self, name, value)
        if is_expected() and isinstance(value, _STATEFUL) and not name.startswith("_"):
            state_came(value)

    return telling
