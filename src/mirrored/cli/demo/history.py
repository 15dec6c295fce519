"""The history of a training, for the report."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class History:
    """The history of a training.

    Attributes:
        losses: The loss of each step.
        epoch_seconds: The duration of each epoch.
        images_per_epoch: The number of training images.
    """

    images_per_epoch: int
    losses: list[float] = dataclasses.field(default_factory=list)
    epoch_seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of one epoch."""
        return len(self.losses) // max(1, len(self.epoch_seconds))

    @property
    def images_per_second(self) -> float:
        """The throughput over all epochs except the first, which compiles."""
        seconds = self.epoch_seconds[1:] or self.epoch_seconds
        return self.images_per_epoch * len(seconds) / sum(seconds)
