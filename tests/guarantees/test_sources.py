"""Data sources x update paths x ways x layouts x last batches: every combination of three occurs in some row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from guarantees.cells import Cell
from guarantees.contract import Run
from guarantees.covering import Row
from guarantees.problem import BATCH, STEPS
from guarantees.rows import FACTORS, ROWS, allowed
from guarantees.sources import OF_EXAMPLES, SOURCES, as_pair

pytestmark = [
    pytest.mark.timeout(300),
]


def test_every_source_is_in_the_array() -> None:
    assert tuple(SOURCES) == FACTORS["source"]


def test_every_combination_of_three_occurs() -> None:
    assert all(allowed(row) for row in ROWS)
    for names in itertools.combinations(FACTORS, 3):
        found = {tuple(row[name] for name in names) for row in ROWS}
        wanted = set(itertools.product(*(FACTORS[name] for name in names)))
        assert found == {one for one in wanted if allowed(dict(zip(names, one, strict=True)))}
    assert len(ROWS) < len(list(itertools.product(*FACTORS.values()))) / 4


class Reads(Run):
    """A run that reads a source."""

    def __init__(self, row: Row) -> None:
        super().__init__(Cell(row["path"], row["way"], *row["layout"]))
        self.last_batch = row["last_batch"]
        of_examples = row["source"] in OF_EXAMPLES
        options = mr.data.InputOptions(last_batch=self.last_batch, batch_size=BATCH if of_examples else None)
        self.dataset = self.strategy.experimental_distribute_dataset(SOURCES[row["source"]](), options)

    def calls(self) -> Any:
        """Batches with a mask, None where there is no padding."""
        batches = self.dataset
        self.dataset = [
            (as_pair(batch[0]), batch[1]) if self.last_batch == "pad" else (as_pair(batch), None) for batch in batches
        ]
        yield from super().calls()
        self.dataset = batches


def check_row(row: Row) -> None:
    """Two epochs: the weights say which examples were used, and how often."""
    run = Reads(row)
    steps = STEPS - (row["last_batch"] == "drop")
    steps -= steps % run.many
    for _ in range(2):
        before = len(run.order)
        found = run.epoch()
        assert run.order[before:] == list(range(steps))
        np.testing.assert_allclose(found, run.wanted_losses()[-steps:], rtol=2e-4)
        run.assert_trained()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id="-".join(map(str, row.values())).replace(" ", "_"),
            marks=() if number % 24 == 0 else (pytest.mark.slow, pytest.mark.guarantees),
        )
        for number, row in enumerate(ROWS)
    ],
)
@pytest.mark.sampled(3)
@pytest.mark.long
def test_every_example_once(row: Row) -> None:
    check_row(row)
