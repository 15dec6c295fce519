"""How several workers agree on the batches that they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirrored.data import Dataset, InputOptions, worker_steps
from mirrored.data.readers import GlobalBatches
from mirrored.data.sources import as_source
from mirrored.data.worker_steps import SameBatches


@pytest.mark.parametrize("interrupted", [None, 1, 2, 3, 4])
def test_a_batch_whose_comparison_was_interrupted_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, interrupted: int | None
) -> None:
    compared: list[Any] = []
    is_first = [True]

    def compare(batch: Any, number: int) -> None:
        if number == interrupted and is_first:
            is_first.clear()
            raise KeyboardInterrupt
        compared.append((number, np.asarray(batch).tolist()))

    monkeypatch.setattr(worker_steps, "check_same_batch", compare)
    reader = GlobalBatches(as_source(Dataset.range(12).batch(2), None, "test"), InputOptions(), 1)
    steps = SameBatches(reader)
    for number in range(1, 7):
        value, _ = reader.read()
        if number == interrupted:
            if number in (1, 2, 4):
                with pytest.raises(KeyboardInterrupt):
                    steps.agreed_input(value, False, number)
            else:  # the interrupt comes after the comparison
                steps.agreed_input(value, False, number)
        assert steps.agreed_input(value, False, number) is value
    assert compared == [(1, [0, 1]), (2, [2, 3]), (4, [6, 7])]
    with pytest.raises(StopIteration):
        steps.agreed_input(None, True, 0)
