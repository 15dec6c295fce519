"""The partial sums of the fixed-order tree: for any number of devices they join to the bits of one device."""

from __future__ import annotations

import numpy as np
import pytest

from mirrored.collectives.partial_sums import PartialSums, partial_sums
from mirrored.collectives.summation import tree_sum
from mirrored.topology.slots import Slots


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 21, 33])
def test_they_join_to_the_sum_of_one_device(replicas: int) -> None:
    values = np.random.default_rng(replicas).normal(size=replicas).astype(np.float32)
    expected = tree_sum(list(values))
    for devices in range(1, replicas + 1):
        slots = Slots(devices, replicas)
        partial = PartialSums(slots)
        own = [values[(first := slots.first_on(d)) : first + slots.number_on(d)] for d in range(devices)]
        sums = [partial_sums(own[d], partial.patterns[d], partial.rows) for d in range(devices)]
        assert {len(one) for one in sums} == {partial.rows}
        assert partial.joined(list(zip(*sums, strict=True))).tobytes() == expected.tobytes(), devices


@pytest.mark.parametrize(
    ("replicas", "devices", "rows"),
    [(8, 1, 1), (8, 2, 1), (8, 4, 1), (8, 8, 1), (6, 3, 1), (12, 3, 1), (6, 4, 1), (8, 3, 2), (5, 2, 2), (32, 3, 4)],
)
def test_devices_exchange_few_rows(replicas: int, devices: int, rows: int) -> None:
    partial = PartialSums(Slots(devices, replicas))
    assert partial.rows == rows
    assert partial.is_complete == (replicas % devices == 0)
