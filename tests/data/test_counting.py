"""Every example occurs exactly once per epoch for all sizes, except for dropped batches."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.data.placement import LAST_BATCH_RULES, split
from mirrored.data.readers import GlobalBatches
from mirrored.data.sources import as_source

REPLICAS = (1, 2, 4, 8)


def shares(size: int, batch: int, replicas: int, rule: Any) -> Iterator[list[Any]]:
    """Yields the per-replica batches of every global batch, before they are placed on devices."""
    source = as_source(Dataset.range(size).batch(batch), None, "test")
    reader = GlobalBatches(source, InputOptions(last_batch=rule), replicas)
    while True:
        try:
            yield split(reader.read()[0], replicas)
        except StopIteration:
            return


def seen(per_replica: list[Any], rule: str) -> list[int]:
    if rule != "pad":
        return [int(number) for share in per_replica for number in share]
    return [int(number) for share, mask in per_replica for number in share[mask]]


@pytest.mark.parametrize("rule", LAST_BATCH_RULES)
@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.first(4)
def test_counts_per_example(rule: str, replicas: int) -> None:
    for size in range(51):
        for batch in range(1, 10):
            counts: collections.Counter[int] = collections.Counter()
            for per_replica in shares(size, batch, replicas, rule):
                counts.update(seen(per_replica, rule))
            kept = size // batch * batch if rule == "drop" and size > batch else size
            assert counts == {number: 1 for number in range(kept)}, (size, batch)


@pytest.mark.first(1)
@pytest.mark.parametrize("replicas", REPLICAS)
def test_padded_batches_have_one_shape(replicas: int) -> None:
    for size in range(1, 51):
        for batch in range(1, 10):
            full = -(-min(batch, size) // replicas)
            for per_replica in shares(size, batch, replicas, "pad"):
                assert {share.shape for share, _ in per_replica} == {(full,)}


@pytest.mark.parametrize("rule", LAST_BATCH_RULES)
@pytest.mark.parametrize("replicas", REPLICAS)
def test_counts_per_example_on_devices(rule: Any, replicas: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    for size, batch in ((0, 3), (1, 2), (11, 4), (16, 8), (23, 7)):
        distributed = strategy.experimental_distribute_dataset(
            Dataset.range(size).batch(batch), InputOptions(last_batch=rule)
        )
        found: list[int] = []
        for element in distributed:
            numbers, masks = element if rule == "pad" else (element, None)
            for share, mask in zip(
                strategy.local_results(numbers),
                strategy.local_results(masks) if masks is not None else [...] * replicas,
                strict=True,
            ):
                found += np.asarray(share)[np.asarray(mask) if masks is not None else ...].tolist()
        assert found == list(range(size // batch * batch if rule == "drop" and size > batch else size))
