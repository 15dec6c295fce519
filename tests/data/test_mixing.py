from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from data.readings import assert_resumes_everywhere, read
from mirrored.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    ArraySpec,
    AutoShardPolicy,
    Dataset,
    DistributeOptions,
    Options,
)
from mirrored.errors import ArgumentError, ArgumentTypeError, StructureError

D = Dataset


def two() -> list[Dataset]:
    return [D.range(3), D.range(10, 13)]


# What TensorFlow 2.21 gives for these programs.
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (lambda: D.choose_from_datasets(two(), D.range(2).repeat()), [0, 10, 1, 11, 2, 12]),
        (
            lambda: D.choose_from_datasets([D.range(2), D.range(10, 13)], D.range(2).repeat(9), False),
            [0, 10, 1, 11, 12],
        ),
        (lambda: D.choose_from_datasets([D.range(2), D.range(10, 13)], D.range(2).repeat(9)), [0, 10, 1, 11]),
        (lambda: D.choose_from_datasets(two(), D.range(2)), [0, 10]),
        (lambda: D.sample_from_datasets(two(), [1.0, 0.0]), [0, 1, 2]),
        (lambda: D.sample_from_datasets([D.range(3)]), [0, 1, 2]),
    ],
)
def test_elements_and_their_order_are_those_of_tensorflow(dataset: Any, expected: list[int]) -> None:
    assert read(dataset()) == expected


def test_a_sample_has_every_element_once_and_each_dataset_in_order() -> None:
    sampled = read(D.sample_from_datasets([D.range(50), D.range(100, 150)], seed=1))
    assert sorted(sampled) == [*range(50), *range(100, 150)]
    assert [n for n in sampled if n < 50] == list(range(50))
    assert sampled != sorted(sampled)


@pytest.mark.long
def test_weights_are_proportions() -> None:
    parts = [D.from_tensors(k).repeat() for k in range(3)]
    counts = Counter(read(D.sample_from_datasets(parts, weights=[1, 2, 5], seed=3).take(4000)))
    assert counts[0] == pytest.approx(500, abs=75)
    assert counts[2] == pytest.approx(2500, abs=125)


def test_weights_may_change_from_draw_to_draw() -> None:
    parts = [D.from_tensors(k).repeat() for k in range(2)]
    weights = D.from_tensor_slices([[1.0, 0.0], [0.0, 1.0]]).repeat(3)
    assert read(D.sample_from_datasets(parts, weights)) == [0, 1] * 3


def test_readings_draw_alike_unless_told_otherwise() -> None:
    def sampled(again: bool | None) -> Dataset:
        return D.sample_from_datasets([D.range(20), D.range(100, 120)], seed=7, rerandomize_each_iteration=again)

    alike, other = sampled(None), sampled(True)
    assert read(alike) == read(alike) == read(sampled(None))
    assert read(other) != read(other)
    assert read(D.sample_from_datasets([D.range(20), D.range(100, 120)], seed=8)) != read(alike)


def test_it_may_end_with_the_first() -> None:
    sampled = read(D.sample_from_datasets([D.range(3), D.range(100, 900)], seed=1, stop_on_empty_dataset=True))
    assert [n for n in sampled if n < 100] == [0, 1, 2]
    assert len(sampled) < 100


def test_cardinality_and_spec() -> None:
    endless = D.range(3).repeat()
    assert D.sample_from_datasets(two()).cardinality() == UNKNOWN_CARDINALITY
    assert D.sample_from_datasets([endless, D.range(2)]).cardinality() == INFINITE_CARDINALITY
    assert (
        D.sample_from_datasets([endless, D.range(2)], stop_on_empty_dataset=True).cardinality() < INFINITE_CARDINALITY
    )
    pair = [D.from_tensors([1, 2]), D.from_tensors([1, 2, 3])]
    assert D.choose_from_datasets(pair, D.range(2)).element_spec == ArraySpec((None,), np.dtype("int32"))


@pytest.mark.parametrize(
    "dataset",
    [
        D.sample_from_datasets([D.range(4), D.range(10, 14).filter(lambda n: n != 12)], [0.3, 0.7]).repeat(2),
        D.choose_from_datasets([D.range(4).shuffle(4), D.range(10, 12)], D.range(2).repeat(5), False),
        D.range(12).rejection_resample(lambda n: n % 2, [0.8, 0.2], seed=1),
        D.random(seed=1).take(5),
        D.counter(1, 2).take(4),
    ],
)
def test_positions(dataset: Dataset) -> None:
    assert_resumes_everywhere(dataset)


@pytest.mark.long
def test_resampling_gives_the_wanted_classes_and_no_element_twice() -> None:
    rare = D.range(20000).map(lambda n: (n, n % 10 == 0))
    for initial in ([0.9, 0.1], None):
        pairs = list(rare.rejection_resample(lambda n, flag: flag, [0.5, 0.5], initial, seed=1))
        classes = Counter(int(found) for found, _ in pairs)
        numbers = [int(n) for _, (n, _) in pairs]
        assert classes[1] == 2000
        assert classes[0] == pytest.approx(2000, abs=150)
        assert numbers == sorted(set(numbers))


def test_resampling_to_what_there_is_keeps_all() -> None:
    assert len(read(D.range(10).rejection_resample(lambda n: n % 2, [0.5, 0.5], [0.5, 0.5]))) == 10


@pytest.mark.parametrize("seed", [None, 1])
def test_every_epoch_of_a_resampled_dataset_drops_other_elements(seed: int | None) -> None:
    def resampled() -> Dataset:
        return D.range(61).rejection_resample(lambda n: n % 2, [0.75, 0.25], [0.9, 0.1], seed).map(lambda _, n: n)

    dataset = resampled()
    twice = read(dataset.repeat(2))
    begin = next(place for place, (n, following) in enumerate(itertools.pairwise(twice), 1) if n > following)
    epochs = [read(dataset), read(dataset), twice[:begin], twice[begin:]]
    assert len({*map(tuple, epochs)}) == 4
    for epoch in epochs:
        assert {*range(1, 61, 2)} < {*epoch} < {*range(61)}
        assert epoch == sorted(epoch)
    assert_resumes_everywhere(resampled().repeat(2))


def test_random_numbers() -> None:
    numbers = D.random(seed=4)
    first = read(numbers.take(1000))
    assert first == read(numbers.take(1000)) == read(D.random(seed=4).take(1000))
    assert 0 <= min(first) < 10**7
    assert 2**31 - 10**7 < max(first) < 2**31
    again = D.random(seed=4, rerandomize_each_iteration=True).take(3)
    assert read(again) != read(again)
    assert numbers.cardinality() == INFINITE_CARDINALITY
    assert numbers.element_spec == ArraySpec((), np.dtype("int64"))


def test_counters() -> None:
    counted = D.counter(5, -2, dtype=np.int32)
    assert read(counted.take(3)) == [5, 3, 1]
    assert counted.element_spec.dtype == np.int32
    assert read(D.zip((D.counter(), D.range(3, 5)))) == [(0, 3), (1, 4)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.sample_from_datasets([]), "at least one dataset"),
        (lambda: D.sample_from_datasets(two(), [1.0]), r"weights of shape \[1\] for 2 datasets"),
        (lambda: D.sample_from_datasets(two(), [-1.0, 2.0]), "a vector of finite numbers that are at least 0"),
        (lambda: D.sample_from_datasets(two(), [0.0, 0.0]), "not all zero"),
        (lambda: D.choose_from_datasets([1, 2], D.range(2)), "at least one dataset"),
        (
            lambda: list(D.choose_from_datasets(two(), D.range(5, 6))),
            "the choice .*5.* is not an index of the 2 datasets",
        ),
        (lambda: D.range(3).rejection_resample(lambda n: n, [1.0], [0.5, 0.5]), "2 classes in initial_dist, 1 in"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_choices_are_a_dataset_and_classes_are_integers() -> None:
    with pytest.raises(ArgumentTypeError, match="choice_dataset is a list"):
        D.choose_from_datasets(two(), [0, 1])  # type: ignore[arg-type]
    with pytest.raises(StructureError, match="class_func returned .* for element 1"):
        list(D.range(3).rejection_resample(lambda n: n, [1.0]))


@pytest.mark.parametrize(
    "made",
    [
        lambda seed: Dataset.range(9).shuffle(9, seed),
        lambda seed: Dataset.range(9).filter(lambda x: True).shuffle(4, seed),
        lambda seed: Dataset.range(9).random_map(lambda x, rng: x + rng.integers(100), seed),
        lambda seed: Dataset.random(seed).take(9),
        lambda seed: Dataset.sample_from_datasets([Dataset.range(9), Dataset.range(9, 18)], seed=seed),
        lambda seed: Dataset.range(9).rejection_resample(lambda x: x % 2, [0.5, 0.5], seed=seed),
    ],
    ids=["shuffle", "shuffle of a stream", "random_map", "random", "sample_from_datasets", "rejection_resample"],
)
@pytest.mark.parametrize("seed", [-1, -(2**63), np.int64(-7)], ids=int)
def test_negative_seeds_give_an_order_of_their_own(made: Callable[[int], Dataset], seed: int) -> None:
    assert read(made(seed)) == read(made(seed))
    assert_resumes_everywhere(made(seed).take(3))


def test_different_negative_seeds_give_different_orders() -> None:
    orders = {str(read(Dataset.range(99).shuffle(99, seed))) for seed in (-2, -1, 1, 2)}
    assert len(orders) == 4


def test_options_of_combined_datasets_are_merged() -> None:
    options, more = Options(), Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
    more.deterministic, more.threading.private_threadpool_size = False, 4
    a, b = D.range(8).with_options(options), D.range(8).with_options(more)
    made = [
        a.with_options(more),
        D.zip((a, b)),
        D.zip((b, a)),
        D.sample_from_datasets([a, b]),
        D.sample_from_datasets([b, D.range(1)], weights=D.from_tensors([0.5, 0.5]).repeat().with_options(options)),
        D.sample_from_datasets(iter([a, b.with_options(options)]), weights=[0.0, 1.0]),
        D.choose_from_datasets([a, b], D.range(2).repeat()),
        D.choose_from_datasets([b], D.range(1).with_options(options)),
        a.concatenate(b),
        b.concatenate(a).enumerate(),
    ]
    for dataset in made:
        assert dataset.options().experimental_distribute.auto_shard_policy == AutoShardPolicy.FILE
        assert dataset.options().deterministic is False
        assert dataset.options().threading.private_threadpool_size == 4
    auto = Options(experimental_distribute=DistributeOptions(AutoShardPolicy.AUTO))
    policy = a.with_options(auto).options().experimental_distribute
    assert policy.auto_shard_policy == AutoShardPolicy.AUTO
    assert policy == DistributeOptions() != a.options().experimental_distribute
    assert repr(a.options().experimental_distribute) == (
        "DistributeOptions(auto_shard_policy=<AutoShardPolicy.FILE: 1>, num_devices=None)"
    )
    assert a.with_options(Options()).options() == a.options() == copy.deepcopy(a.options())
