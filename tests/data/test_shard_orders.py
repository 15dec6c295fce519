"""Workers that shard one shuffled dataset must shuffle it alike, or examples are lost and others repeated."""

from __future__ import annotations

from typing import Any

import pytest

from mirrored.data import Dataset
from mirrored.data.pipeline import dataset as datasets
from mirrored.data.pipeline.dataset_source import DatasetSource
from mirrored.data.worker_steps import _check_shards
from mirrored.errors import DisagreementError


def orders(*made: datasets.Dataset) -> list[list[Any]]:
    return [[source.shard_order(source.open())] for source in map(DatasetSource, made)]


def shuffled(worker: int, size: int = 24, **options: Any) -> datasets.Dataset:
    return Dataset.range(size).shuffle(size, **options).map(lambda x: x).shard(2, worker).batch(2)


def test_unequal_seeds_before_shard_are_refused() -> None:
    for options in ({"seed": 0}, {"seed": 1}), ({}, {}):
        with pytest.raises(DisagreementError, match="shards 0 and 1 of the same data"):
            _check_shards(orders(*(shuffled(worker, **given) for worker, given in enumerate(options))))


def test_other_pipelines_are_accepted() -> None:
    for made in (
        [shuffled(worker, seed=3) for worker in range(2)],
        [shuffled(worker, 24 + worker, seed=worker) for worker in range(2)],  # data of their own
        [shuffled(0, seed=worker) for worker in range(2)],  # the same part, as other examples of an ensemble
        [Dataset.range(24).shard(2, worker).shuffle(12, seed=worker) for worker in range(2)],
        [Dataset.range(24).shard(2, 0), shuffled(1, seed=1)],
    ):
        _check_shards(orders(*made))


def test_a_worker_that_has_read_a_pass_alone_is_refused_if_passes_differ() -> None:
    for reshuffles in (False, True):
        made = [shuffled(worker, seed=3, reshuffle_each_iteration=reshuffles) for worker in range(2)]
        list(made[0])
        if not reshuffles:
            _check_shards(orders(*made))
            continue
        with pytest.raises(DisagreementError):
            _check_shards(orders(*made))
