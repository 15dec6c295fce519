"""One shuffled dataset that is used several times: which orders are equal, as TensorFlow 2.21 decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from data.readings import assert_resumes_everywhere, read
from mirrored.data import Dataset as D

N = 24
Orders = list[list[int]]


def halves(elements: list[int], parts: int = 2) -> Orders:
    return np.reshape(elements, (parts, N)).tolist()


def zipped(d: D) -> D:
    return D.zip((d, d))


def zipped_after_maps(d: D) -> D:
    return D.zip({"a": d.map(lambda x: x), "b": d.batch(2).unbatch()}).map(lambda both: (both["a"], both["b"]))


def zip_of_zips(d: D) -> D:
    return D.zip((d, D.zip((d, d)))).map(lambda a, others: (a, *others))


def zipped_streams(d: D) -> D:
    return D.zip((d.filter(lambda x: True), d))


def columns(dataset: D) -> Orders:
    return np.asarray(read(dataset)).T.tolist()


USES: dict[str, Callable[[D], Orders]] = {
    "zip": lambda d: columns(zipped(d)),
    "zip after maps": lambda d: columns(zipped_after_maps(d)),
    "zip of zips": lambda d: columns(zip_of_zips(d)),
    "zip of streams": lambda d: columns(zipped_streams(d)),
    "concatenate": lambda d: halves(read(d.concatenate(d))),
    "concatenate streams": lambda d: halves(read(d.filter(lambda x: True).concatenate(d))),
    "repeat": lambda d: halves(read(d.repeat(3)), 3),
    "zip, repeat": lambda d: [order for part in columns(zipped(d).repeat(2)) for order in halves(part)],
    "concatenate, repeat": lambda d: halves(read(d.concatenate(d).repeat(2)), 4),
    "choose": lambda d: columns(D.choose_from_datasets([d, d], D.range(2).repeat(N)).batch(2)),
    "flat_map": lambda d: halves(read(D.range(3).flat_map(lambda _: d)), 3),
    "interleave": lambda d: halves(read(D.range(2).interleave(lambda _: d, cycle_length=2, block_length=N))),
    "two iterations": lambda d: [read(d), read(d)],
    "two iterations of a zip": lambda d: [order for dataset in [zipped(d)] * 2 for order in columns(dataset)],
}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("reshuffles", [None, True, False])
@pytest.mark.parametrize("use", USES)
def test_the_orders_differ_if_each_iteration_is_reshuffled(use: str, reshuffles: bool | None, seed: int | None) -> None:
    orders = USES[use](D.range(N).shuffle(N, seed=seed, reshuffle_each_iteration=reshuffles))
    assert all(sorted(order) == list(range(N)) for order in orders)
    expected = 1 if reshuffles is False else len(orders)
    assert len({tuple(order) for order in orders}) == expected


def test_a_shuffle_of_each_use_has_its_own_order_without_the_change_of_the_first() -> None:
    def d() -> D:
        return D.range(N).shuffle(N, seed=7)

    one = d()
    assert columns(D.zip((one, one)))[0] == read(d())
    assert columns(D.zip((d(), d()))) == [read(d())] * 2  # two datasets with equal seeds


def test_datasets_that_a_function_makes_have_orders_of_their_own() -> None:
    made = D.range(3).flat_map(lambda _: D.range(N).shuffle(N, reshuffle_each_iteration=False))
    assert len({tuple(order) for order in halves(read(made), 3)}) == 3


def test_random_numbers_differ_between_uses_if_every_iteration_draws_others() -> None:
    for rerandomizes in (True, False):
        numbers = D.random(seed=3, rerandomize_each_iteration=rerandomizes).take(N)
        one, other = columns(D.zip((numbers, numbers)))
        assert (one != other) == rerandomizes


@pytest.mark.parametrize("make", [zipped, zip_of_zips, zipped_streams, lambda d: d.concatenate(d)])
def test_positions_are_exact(make: Callable[[D], Any]) -> None:
    assert_resumes_everywhere(make(D.range(6).shuffle(6, seed=5)).repeat(2))


def test_positions_in_a_dataset_that_a_function_refers_to_are_exact() -> None:
    def dataset() -> D:
        d = D.range(6).shuffle(6, reshuffle_each_iteration=False)
        return D.range(3).flat_map(lambda _: d)

    reading = iter(dataset())
    for _ in range(8):
        next(reading)
    position = reading.get_state()
    rest = [int(x) for x in reading]
    again = iter(dataset())
    again.set_state(position)
    assert [int(x) for x in again] == rest


@pytest.mark.parametrize(
    ("uses", "join"),
    [
        (3, lambda d: d.concatenate(d).concatenate(d)),
        (3, lambda d: d.concatenate(d.concatenate(d))),
        (4, lambda d: d.concatenate(d).concatenate(d).concatenate(d)),
        (4, lambda d: d.concatenate(d).concatenate(d.concatenate(d))),
        (5, lambda d: d.concatenate(d.concatenate(d)).concatenate(d).concatenate(d)),
        (6, lambda d: (lambda two: two.concatenate(two).concatenate(two))(d.concatenate(d))),
    ],
)
def test_all_uses_in_nested_steps_have_orders_of_their_own(uses: int, join: Callable[[D], D]) -> None:
    orders = halves(read(join(D.range(N).shuffle(N, seed=7))), uses)
    assert len({tuple(order) for order in orders}) == uses


@pytest.mark.parametrize(
    "join",
    [
        lambda d: D.zip((D.zip((d, d)), d)).map(lambda pair, third: (*pair, third)),
        lambda d: D.zip((D.zip((D.range(N), D.range(N), d, d)), D.range(N), D.range(N), d)).map(
            lambda four, a, b, third: (*four[2:], third)
        ),
    ],
)
def test_all_uses_in_nested_zips_have_orders_of_their_own(join: Callable[[D], D]) -> None:
    assert len({tuple(order) for order in columns(join(D.range(N).shuffle(N, seed=7)))}) == 3


WITH_RANDOM_STEPS: dict[str, Callable[[], D]] = {
    "shuffle": lambda: D.range(9).shuffle(9, seed=1),
    "shuffle of a long stream": lambda: D.range(1500).filter(lambda _: True).shuffle(8, seed=1),
    "in flat_map": lambda: D.range(3).flat_map(lambda _: D.range(9).shuffle(9, seed=1)),
    "in interleave": lambda: D.range(3).interleave(lambda _: D.range(9).shuffle(9, seed=1), cycle_length=2),
    "repeat in flat_map": lambda: D.range(3).flat_map(lambda _: D.range(9).shuffle(9, seed=1).repeat(2)),
    "random_map": lambda: D.range(9).random_map(lambda x, rng: rng.integers(1000), seed=1),
    "twice": lambda: (lambda d: d.concatenate(d))(D.range(9).shuffle(9, seed=1)),
    "repeat": lambda: D.range(9).shuffle(9, seed=1).repeat(3),
}


@pytest.mark.long
@pytest.mark.parametrize("make", WITH_RANDOM_STEPS.values(), ids=WITH_RANDOM_STEPS)
def test_a_later_repeat_keeps_the_order_of_its_first_epoch(make: Callable[[], D]) -> None:
    """A position of the pipeline without `repeat` is accepted by the one with it, which must go on in its order."""
    dataset = make()
    first, second = read(dataset), read(dataset)
    repeated = read(make().repeat(2))
    assert repeated[: len(first)] == first
    assert repeated[len(first) :] not in (first, second)


@pytest.mark.parametrize(
    ("name", "make", "earlier"),
    [
        (
            "flat_map",
            lambda: D.range(3).flat_map(lambda _: D.range(4).shuffle(4, seed=1)),
            [0, 1, 2, 3, 2, 0, 1, 3, 1, 3, 2, 0],
        ),
        (
            "random_map",
            lambda: D.range(9).random_map(lambda x, rng: rng.integers(1000), seed=1),
            [473, 976, 522, 969, 177, 126, 866, 53, 128],
        ),
        (
            "two repeats",
            lambda: D.range(4).shuffle(4, seed=1).repeat(2).repeat(2),
            [0, 1, 2, 3, 1, 0, 3, 2, 2, 0, 1, 3, 0, 2, 1, 3],
        ),
        (
            "two uses",
            lambda: (lambda d: d.concatenate(d).repeat(2))(D.range(4).shuffle(4, seed=1)),
            [0, 1, 2, 3, 0, 1, 2, 3, 2, 0, 1, 3, 3, 1, 2, 0],
        ),
        (
            "three uses",
            lambda: (lambda d: d.concatenate(d).concatenate(d))(D.range(4).shuffle(4, seed=7)),
            [0, 2, 1, 3, 1, 3, 0, 2, 1, 3, 0, 2],
        ),
        (
            "cache of a stream",
            lambda: D.range(3).flat_map(lambda _: D.range(4).shuffle(4, seed=1)).cache(),
            [0, 1, 2, 3, 2, 0, 1, 3, 1, 3, 2, 0],
        ),
    ],
)
def test_positions_of_earlier_versions_go_on_in_their_order(name: str, make: Any, earlier: list[int]) -> None:
    """They have no "keys". The orders are those of earlier versions; the dataset's next iterations have new ones."""
    dataset = make()
    new = read(dataset)
    assert new != earlier, name
    position = iter(make()).get_state()
    assert position.pop("keys") == 2
    reading = iter(dataset)
    reading.set_state(position)
    for place in range(len(earlier)):
        again = iter(make())
        again.set_state(reading.get_state())
        assert read(again) == earlier[place:]
        assert int(next(reading)) == earlier[place]
    assert read(make()) == new


def distributed(dataset: D) -> list[int]:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = strategy.experimental_distribute_dataset(dataset)
    return [int(x) for batch in batches for x in strategy.gather(batch, axis=0)]


DERIVED: dict[str, Callable[[D], list[int]]] = {
    "take": lambda d: read(d.take(N)),
    "map, take": lambda d: read(d.map(lambda x: x + 1).take(N)),
    "batch": lambda d: [int(x) for batch in d.take(N).batch(8) for x in batch],
    "distributed": lambda d: distributed(d.take(N).batch(8)),
    "prefetch": lambda d: read(d.take(N).prefetch(1)),
    "zip": lambda d: [int(x) for x, _ in D.zip((d, D.range(N)))],
    "concatenate": lambda d: read(d.take(N).concatenate(D.range(1)))[:N],
    "options": lambda d: read(d.take(N).with_options(mr.data.Options())),
}
RANDOM: dict[str, Callable[[], D]] = {
    "shuffle": lambda: D.range(N).shuffle(N, seed=7),
    "shuffle of a stream": lambda: D.range(N).filter(lambda _: True).shuffle(N),
    "random_map": lambda: D.range(N).random_map(lambda x, rng: rng.integers(2**30)),
    "random": lambda: D.random(rerandomize_each_iteration=True),
    "flat_map": lambda: D.range(2).flat_map(lambda _: D.range(N // 2).shuffle(N)),
    "sample_from_datasets": lambda: D.sample_from_datasets([D.range(N)] * 2, rerandomize_each_iteration=True),
}


@pytest.mark.parametrize("derived", DERIVED)
@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_datasets_derived_anew_in_each_epoch_have_other_orders(make: Callable[[], D], derived: str) -> None:
    """The generator of the seeds belongs to the shuffled dataset, as in TensorFlow."""
    dataset = make()
    orders = [DERIVED[derived](dataset) for _ in range(3)] + [DERIVED["take"](dataset)]
    assert len({tuple(order) for order in orders}) == 4


def test_passes_over_several_shuffled_datasets_never_have_an_earlier_number() -> None:
    a, b = (D.range(N).shuffle(N, seed=7) for _ in range(2))
    seen = [read(a), read(a), columns(D.zip((a, b)))[1], read(b), read(a)]
    assert len({tuple(order) for order in seen[:3]}) == 3
    assert seen[3] == seen[4] not in seen[:3]


def test_live_iterators_keep_their_orders() -> None:
    dataset, alone = D.range(N).shuffle(N, seed=7), D.range(N).shuffle(N, seed=7)
    orders = [read(alone) for _ in range(3)]
    iterators = [iter(dataset), iter(dataset.take(N)), iter(dataset.skip(0))]
    assert np.transpose([[int(next(one)) for one in iterators] for _ in range(N)]).tolist() == orders


def split(parts: tuple[int, int] = (16, 8)) -> tuple[D, D]:
    full = D.range(N).shuffle(N, reshuffle_each_iteration=False)
    return full.take(parts[0]), full.skip(parts[0])


@pytest.mark.parametrize("validation_begins", ["before", "after"])
@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_position_of_the_training_part_restores_the_validation_part(
    is_distributed: bool, validation_begins: str
) -> None:
    def ready(dataset: D) -> Any:
        strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
        return strategy.experimental_distribute_dataset(dataset.batch(4)) if is_distributed else dataset.batch(4)

    def numbers(batches: Any) -> set[int]:
        strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
        return {int(x) for one in batches for x in (strategy.gather(one, axis=0) if is_distributed else one)}

    train, validation = map(ready, split())
    held_out = numbers(validation)
    assert not numbers(train) & held_out
    reading = iter(train)
    next(reading)
    train, validation = map(ready, split())
    restored, begun = iter(train), iter(validation)
    restored.set_state(reading.get_state())
    assert numbers(begun if validation_begins == "before" else validation) == held_out
    assert numbers(train) == set(range(N)) - held_out


def test_a_position_that_does_not_fit_leaves_the_seed_of_the_step() -> None:
    train, validation = split()
    held_out = read(validation)
    state = iter(split()[0]).get_state()
    with pytest.raises(mr.errors.MirroredError):
        iter(train).set_state({**state, "position": {"next_index": 1000}, "count": 1000})
    assert read(validation) == held_out


def test_a_position_that_does_not_fit_leaves_the_number_of_the_next_pass() -> None:
    """The batch that is handed out was read before the other passes."""
    dataset = D.range(N).shuffle(N, seed=7)
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    reading = iter(strategy.experimental_distribute_dataset(dataset.batch(4)))
    next(reading)
    orders = [read(dataset) for _ in range(2)]
    state = reading.get_state()
    source = {**state["reader"]["source"], "position": {"next_index": 1000}, "count": 1000}
    with pytest.raises(mr.errors.MirroredError):
        reading.set_state({**state, "reader": {**state["reader"], "source": source}})
    assert read(dataset) not in orders
