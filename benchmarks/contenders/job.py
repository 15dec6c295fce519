"""What a contender is asked to do, over and over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


def _nothing(calls: int) -> None:
    """Nobody else has to be told."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A piece of work.

    Attributes:
        call: Does it once and waits for it; a training step returns its loss.
        launch: Starts it and returns what to wait for; None if a call always waits.
        wait: Waits for what `launch` returned.
        steps: Training steps in one call.
        before: Told how many calls will follow.
        facts: What is known of it once it has run.
        weights: A training step's weights as they are now, by name.
        state: All of mirrored's variables of a training step, for a checkpoint.
    """

    call: Callable[[], Any]
    launch: Callable[[], Any] | None = None
    wait: Callable[[Any], None] | None = None
    steps: int = 1
    before: Callable[[int], None] = _nothing
    facts: Callable[[], dict[str, Any]] = dict
    weights: Callable[[], Mapping[str, Any]] = dict
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
