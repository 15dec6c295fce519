"""The rows of the covering array over data sources."""

from __future__ import annotations

from typing import Final

from guarantees.cells import PATHS
from guarantees.covering import Row, covering_array

SOURCES: Final = (
    "NumPy",
    "Dataset",
    "Grain",
    "PyTorch DataLoader",
    "Hugging Face datasets",
    "buffer-reusing loader",
)
FACTORS: Final = {
    "source": SOURCES,
    "path": tuple(path for path in PATHS if path not in ("Keras fit", "Keras train_step")),
    "way": ("eager", "compiled", "steps_per_call"),
    "layout": ((1, 1), (2, 2), (1, 4), (3, 6)),
    "last_batch": ("split", "pad", "drop"),
}


def allowed(row: Row) -> bool:
    """The steps of one call have one shape."""
    return not (row.get("way") == "steps_per_call" and row.get("last_batch") == "split")


ROWS: Final = covering_array(FACTORS, 3, allowed)
