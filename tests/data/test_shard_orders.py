"""Workers that shard one shuffled dataset must shuffle it alike, or examples are lost and others repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions, InputReplicationMode
from mirrored.data.pipeline import dataset as datasets
from mirrored.data.pipeline.dataset_source import DatasetSource
from mirrored.data.shard_orders import agreed_orders
from mirrored.errors import DisagreementError

Shard = Callable[[Any], Any]


def begun(made: Any) -> list[Any]:
    """Iterators over a dataset of each worker, with the orders on which the workers agree."""
    sources = [DatasetSource(dataset) for dataset in made]
    cursors = [source.open() for source in sources]
    orders = [[source.shard_orders(cursor)] for source, cursor in zip(sources, cursors, strict=True)]
    seeds, iteration = agreed_orders(orders)
    for number, (source, cursor) in enumerate(zip(sources, cursors, strict=True)):
        own = {place: found for (worker, _, place), found in seeds.items() if worker == number}
        if own:
            source.share_shard_orders(cursor, own, iteration)
    return cursors


def examples(made: Any, batches: int | None = None) -> list[list[int]]:
    taken = [itertools.islice(iterator, batches) for iterator in begun(made)]
    return [np.concatenate([np.ravel(batch) for batch in each]).tolist() for each in taken]


def shuffled(worker: int, size: int = 24, **options: Any) -> datasets.Dataset:
    return Dataset.range(size).shuffle(size, **options).map(lambda x: x).shard(2, worker).batch(2)


PIPELINES: dict[str, Callable[[Shard], Any]] = {
    "shuffle": lambda shard: shard(Dataset.range(24).shuffle(24)),
    "generator": lambda shard: shard(Dataset.from_generator(lambda: iter(range(24))).shuffle(8)),
    "two shuffles": lambda shard: shard(Dataset.range(24).shuffle(24).map(lambda x: x).shuffle(5)),
    "also after shard": lambda shard: shard(Dataset.range(24).shuffle(24)).shuffle(6),
    "files": lambda shard: shard(
        Dataset.range(4).shuffle(4).interleave(lambda i: Dataset.range(6).map(lambda j: 6 * i + j), cycle_length=2)
    ),
    "shuffles of files": lambda shard: shard(
        Dataset.range(4).flat_map(lambda i: Dataset.range(6).map(lambda j: 6 * i + j).shuffle(6))
    ),
    "mixed": lambda shard: shard(Dataset.sample_from_datasets([Dataset.range(12), Dataset.range(12, 24)], [0.5, 0.5])),
    "cached": lambda shard: shard(Dataset.range(24).shuffle(24).cache()),
    "two shards": lambda shard: shard(Dataset.range(24).shuffle(24)).shuffle(24).shard(1, 0),
}


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES.keys())
def test_each_example_is_in_one_shard_without_seeds(pipeline: Callable[[Shard], Any]) -> None:
    def of_worker(worker: int) -> Any:
        return pipeline(lambda one: one.shard(2, worker)).batch(2)

    made = [of_worker(worker) for worker in range(2)]
    passes = [examples(made) for _ in range(3)]
    for shares in passes:
        assert sorted(shares[0] + shares[1]) == list(range(24))


def test_a_repeated_dataset_is_divided() -> None:
    whole = Dataset.range(24).repeat().shuffle(24, seed=3)
    made = [whole.shard(2, 0).batch(4), Dataset.range(24).repeat().shuffle(24).shard(2, 1).batch(4)]
    first, second = examples(made, 30)
    expected: Any = DatasetSource(Dataset.range(24).repeat().shuffle(24, seed=3)).open()
    assert [one for pair in zip(first, second, strict=True) for one in pair] == list(itertools.islice(expected, 240))


def test_the_order_after_shard_and_of_equal_parts_is_that_of_each_worker() -> None:
    for made in (
        [Dataset.range(64).shard(2, worker).shuffle(64, seed=worker) for worker in range(2)],
        [Dataset.range(64).shuffle(64).shard(2, 0) for _ in range(2)],
    ):
        sources = [DatasetSource(dataset.batch(2)) for dataset in made]
        orders = [[source.shard_orders(source.open())] for source in sources]
        assert agreed_orders(orders) == ({}, 0)
    made = [Dataset.range(64).shuffle(64).shard(2, worker).shuffle(64).batch(2) for worker in range(2)]
    seeds = [iterator.seeds for iterator in begun(made)]
    assert seeds[0][1] == seeds[1][1]
    assert seeds[0][0] != seeds[1][0]


def test_pairs_of_workers_with_equal_parts_divide_the_data_separately() -> None:
    shares = examples([shuffled(worker // 2) for worker in range(4)])
    for one, other in ((0, 2), (1, 3)):
        assert sorted(shares[one] + shares[other]) == list(range(24))
    assert shares[0] != shares[1]


def test_unequal_given_seeds_before_shard_are_refused() -> None:
    with pytest.raises(DisagreementError, match="shards 0 and 1 of the same data"):
        begun([shuffled(worker, seed=worker) for worker in range(2)])


def test_a_given_seed_is_that_of_all_workers() -> None:
    shares = examples([shuffled(0), shuffled(1, seed=3)])
    assert shares[1] == examples([shuffled(0, seed=3), shuffled(1, seed=3)])[1]
    assert sorted(shares[0] + shares[1]) == list(range(24))


def test_other_pipelines_are_accepted() -> None:
    for made in (
        [shuffled(worker, seed=3) for worker in range(2)],
        [shuffled(worker, 24 + worker, seed=worker) for worker in range(2)],  # data of their own
        [shuffled(0, seed=worker) for worker in range(2)],  # the same part, as other examples of an ensemble
        [Dataset.range(24).shard(2, worker).shuffle(12, seed=worker) for worker in range(2)],
        [Dataset.range(24).shard(2, 0), shuffled(1, seed=1)],
    ):
        begun(made)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"reshuffle_each_iteration": False}], ids=str)
def test_a_worker_that_has_read_a_pass_alone_continues_with_the_others(options: dict[str, Any]) -> None:
    made = [shuffled(worker, **options) for worker in range(2)]
    list(made[0])
    for _ in range(2):
        shares = examples(made)
        assert sorted(shares[0] + shares[1]) == list(range(24))


def test_a_dataset_per_replica_divides_the_data() -> None:
    strategy = mr.MirroredStrategy()
    options = InputOptions(
        experimental_replication_mode=InputReplicationMode.PER_REPLICA, experimental_fetch_to_device=True
    )
    count = strategy.num_replicas_in_sync
    assert count > 1
    distributed = strategy.distribute_datasets_from_function(
        lambda context: (
            Dataset.range(8 * count).shuffle(64).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)
        ),
        options,
    )
    for _ in range(2):
        read = [np.ravel(part).tolist() for batch in distributed for part in strategy.local_results(batch)]
        assert sorted(itertools.chain(*read)) == list(range(8 * count))
