"""The cells of the matrix: update path x way of running x layout; and those that are refused, with the reason."""

from __future__ import annotations

import dataclasses
from typing import Final

PATHS: Final = (
    "mr.optimizers",
    "optax in run",
    "assign(all_reduce)",
    "merge_call",
    "NNX optimizer",
    "Keras custom loop",
    "Keras fit",
    "Keras train_step",
    "Equinox",
    "Linen TrainState",
)
GUARANTEES: Final = {
    "result": "losses and weights are those of one device, up to rounding",
    "examples": "every example that the rule for the last batch keeps is used exactly once per epoch",
    "copies": "every device holds the same bits of every mirrored variable",
    "bits": "with `deterministic=True` weights are bit-identical to those of the same replicas on one device",
    "no retrace": "an epoch of a warm loop traces and compiles nothing",
    "no leak": "an epoch of a warm loop keeps no more arrays",
    "failure": "an exception in a replica leaves all variables as they were before the step",
    "interrupt": "Ctrl-C leaves all variables as they were before or after the same step",
}
# Devices and replicas by way. One replica per device, or several (virtual replicas); two processes share the devices.
_ONE_EACH: Final = tuple((count, count) for count in (1, 2, 3, 4, 6, 8))
_OF_EIGHT: Final = tuple((devices, 8) for devices in (1, 2, 4, 8))
_OF_SIX: Final = tuple((devices, 6) for devices in (1, 2, 3, 6))
# The devices do not divide the replicas.
_UNEVEN: Final = ((3, 8), (4, 6), (2, 5))
LAYOUTS: Final = {
    "eager": (*_ONE_EACH, (3, 8)),
    "compiled": _ONE_EACH,
    "virtual replicas": (*(one for one in _OF_EIGHT + _OF_SIX if one[0] < one[1]), *_UNEVEN),
    "steps_per_call": _OF_EIGHT + _OF_SIX + _UNEVEN,
    "two processes": tuple(one for one in _OF_EIGHT + _OF_SIX + _UNEVEN if one[0] % 2 == 0),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        path: How weights are updated.
        way: How the program runs.
        devices: On how many devices, over all processes.
        replicas: How many replicas.
    """

    path: str
    way: str
    devices: int
    replicas: int

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.path}-{self.way}-{self.replicas}on{self.devices}".replace(" ", "_")

    @property
    def is_uneven(self) -> bool:
        """Whether some devices have one replica less than others."""
        return self.replicas % self.devices > 0

    @property
    def refusal(self) -> Refusal | None:
        """Why it is refused, None if it is not."""
        return REFUSED.get((self.path, self.way))


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why a path cannot be run in a way.

    Attributes:
        reason: For the table.
        message: A part of the error that the user gets.
    """

    reason: str
    message: str


REFUSED: Final[dict[tuple[str, str], Refusal]] = {
    ("Keras fit", "two processes"): Refusal(
        "with `deterministic=True` Keras computes each batch whole on one device, in one process; "
        "a custom loop spreads it",
        "the model belongs to a deterministic strategy over several workers",
    )
}
# The number of refused cells may only fall, unless layouts are added: lower it with the table.
MOST_REFUSED: Final = 7


@dataclasses.dataclass(frozen=True)
class Unmet:
    """A guarantee that some cells do not keep yet: a known defect.

    Attributes:
        guarantee: Which.
        reason: For the table.
        path: Of the cells; None for all.
        way: Of the cells; None for all.
        replicas: Of the cells; None for all.
    """

    guarantee: str
    reason: str
    path: str | None = None
    way: str | None = None
    replicas: int | None = None

    def holds_for(self, cell: Cell) -> bool:
        """Whether the cell is one of these."""
        wanted = ((self.path, cell.path), (self.way, cell.way), (self.replicas, cell.replicas))
        return all(one is None or one == other for one, other in wanted)


UNMET: Final[tuple[Unmet, ...]] = ()
# Like the refusals, they may only become fewer.
MOST_UNMET: Final = 0


def is_met(cell: Cell, guarantee: str) -> bool:
    """Whether the cell keeps the guarantee."""
    return not any(one.guarantee == guarantee and one.holds_for(cell) for one in UNMET)


CELLS: Final = tuple(
    Cell(path, way, *layout) for path in PATHS for way, layouts in LAYOUTS.items() for layout in layouts
)
