"""What a training went through, for the report."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class History:
    """What a training went through.

    Attributes:
        losses: One per step.
        epoch_seconds: One per epoch.
        images_per_epoch: The training images.
    """

    images_per_epoch: int
    losses: list[float] = dataclasses.field(default_factory=list)
    epoch_seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass."""
        return len(self.losses) // max(1, len(self.epoch_seconds))

    @property
    def images_per_second(self) -> float:
        """Over all epochs but the first, which compiles."""
        seconds = self.epoch_seconds[1:] or self.epoch_seconds
        return self.images_per_epoch * len(seconds) / sum(seconds)
