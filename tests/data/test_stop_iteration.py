"""A StopIteration from inside a pipeline does not end the data: neither that of an empty dataset nor of user code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from data.readings import assert_resumes_everywhere, read
from mirrored.data import Dataset
from mirrored.errors import InputError, StructureError


def nothing() -> Dataset:
    """An empty dataset whose spec depends on its first element."""
    return Dataset.range(0).map(lambda y: y)


EMPTY: dict[str, Callable[[], Dataset]] = {
    "map": nothing,
    "random map": lambda: Dataset.range(0).random_map(lambda x, rng: x),
    "stream": lambda: Dataset.range(4).filter(lambda x: False).map(lambda x: x),
    "random stream": lambda: Dataset.range(4).filter(lambda x: False).random_map(lambda x, rng: x),
    "generator": lambda: Dataset.from_generator(lambda: iter(())),
    "scan": lambda: Dataset.range(0).scan(np.int64(0), lambda state, x: (state, x)),
    "window": lambda: Dataset.range(0).window(2),
    "flat_map": lambda: Dataset.range(0).flat_map(Dataset.from_tensors),
    "group_by_window": lambda: Dataset.range(0).group_by_window(lambda x: x, lambda key, window: window, 2),
    "rejection_resample": lambda: nothing().rejection_resample(lambda x: 0, [1.0]),
    "batch": lambda: nothing().batch(2),
    "zip": lambda: Dataset.zip((nothing(), Dataset.range(3))),
    "concatenate": lambda: nothing().concatenate(nothing()),
    "choose_from_datasets": lambda: Dataset.choose_from_datasets([nothing(), nothing()], Dataset.range(2)),
}


@pytest.mark.parametrize("keep", ["cache", "snapshot"])
@pytest.mark.parametrize("name", sorted(EMPTY))
def test_empty_datasets_are_kept(name: str, keep: str, tmp_path: Path) -> None:
    for _ in range(2):
        kept = getattr(EMPTY[name](), keep)(tmp_path / "kept")
        iter(kept).get_state()
        assert_resumes_everywhere(kept)
        assert read(kept.repeat(2)) == []
        with pytest.raises(StructureError, match="the dataset has no element"):
            _ = kept.element_spec
    EMPTY[name]().save(tmp_path / "saved")
    loaded = Dataset.load(tmp_path / "saved")
    assert (len(loaded), read(loaded.batch(2))) == (0, [])


@pytest.mark.parametrize("name", sorted(EMPTY))
def test_the_spec_of_an_empty_dataset_is_an_error(name: str) -> None:
    with pytest.raises(StructureError, match=r"Dataset\.element_spec: the dataset has no element"):
        _ = EMPTY[name]().element_spec


INNER: dict[str, Callable[[Dataset, Path], Dataset]] = {
    "plain": lambda one, _: one,
    "memory": lambda one, _: one.cache(),
    "file": lambda one, path: one.cache(path),
    "snapshot": lambda one, path: one.snapshot(path),
    "scan": lambda one, path: one.cache(path).scan(np.int64(0), lambda state, x: (state, x)),
    "take_while": lambda one, path: one.cache(path).take_while(lambda x: True),
}


@pytest.mark.parametrize("keep", sorted(INNER))
@pytest.mark.parametrize("cycle", [1, 2, 4])
@pytest.mark.parametrize("sizes", [[2, 3, 0, 4], [0, 2], [2, 0, 0], [0]])
def test_an_empty_inner_dataset_does_not_end_the_outer_one(
    sizes: list[int], cycle: int, keep: str, tmp_path: Path
) -> None:
    def inner(count: Any) -> Dataset:
        return INNER[keep](Dataset.range(int(count)).map(lambda y: y), tmp_path / f"{count}")

    outer = Dataset.from_tensor_slices(np.array(sizes))
    found = outer.interleave(inner, cycle_length=cycle)
    assert sorted(read(found)) == sorted(n for size in sizes for n in range(size))
    assert_resumes_everywhere(found)
    if cycle == 1:
        assert read(outer.flat_map(inner)) == [n for size in sizes for n in range(size)]


@pytest.mark.parametrize("keep", ["memory", "file"])
def test_an_empty_member_does_not_end_the_others(keep: str, tmp_path: Path) -> None:
    empty, full = INNER[keep](nothing(), tmp_path), Dataset.range(3).filter(lambda x: True)
    spec = full.element_spec
    for made in (empty.concatenate(full), full.concatenate(empty)):
        assert (read(made), made.element_spec) == ([0, 1, 2], spec)
    chosen = Dataset.choose_from_datasets([empty, full], Dataset.range(2).repeat(), stop_on_empty_dataset=False)
    assert (read(chosen), chosen.element_spec) == ([0, 1, 2], spec)


def test_the_spec_does_not_depend_on_a_first_part_that_is_empty(tmp_path: Path) -> None:
    numbers = Dataset.from_tensor_slices(np.array([0, 2]))
    joined = numbers.flat_map(lambda count: Dataset.range(count).map(lambda y: y))
    assert joined.element_spec == Dataset.range(1).element_spec
    grouped = Dataset.range(4).group_by_window(
        lambda x: x % 2, lambda key, window: window.filter(lambda x: bool(key)).map(lambda x: x), 2
    )
    assert grouped.element_spec == Dataset.range(1).element_spec
    assert read(joined.cache(tmp_path / "a")) == [0, 1]
    assert read(grouped.cache(tmp_path / "b")) == [1, 3]


def stop(*_: Any) -> Any:
    raise StopIteration


def stop_at_one(*parts: Any) -> Any:
    if parts[0] == 1:
        raise StopIteration
    return parts[0]


class StoppingIterable:
    def __iter__(self) -> Iterator[Any]:
        return stop()  # type: ignore[no-any-return]


def stream() -> Dataset:
    return Dataset.range(3).filter(lambda x: True)


USER_CODE: dict[str, Callable[[], Any]] = {
    "map": lambda: Dataset.range(3).map(stop_at_one),
    "map in threads": lambda: Dataset.range(3).map(stop_at_one, num_parallel_calls=2),
    "map of a stream": lambda: stream().map(stop_at_one),
    "map before shuffle": lambda: stream().map(stop_at_one).shuffle(2),
    "map before batch": lambda: stream().map(stop_at_one).batch(2),
    "map before rebatch": lambda: Dataset.range(3).map(stop_at_one).batch(1).rebatch(2),
    "map before repeat": lambda: stream().map(stop_at_one).repeat(2),
    "map before cache": lambda: stream().map(stop_at_one).cache(),
    "map before prefetch": lambda: stream().map(stop_at_one).prefetch(2),
    "random_map": lambda: Dataset.range(3).random_map(stop_at_one),
    "random_map of a stream": lambda: stream().random_map(stop_at_one),
    "filter": lambda: Dataset.range(3).filter(stop_at_one),
    "take_while": lambda: Dataset.range(3).take_while(lambda x: stop_at_one(x) == 0),
    "flat_map": lambda: Dataset.range(3).flat_map(lambda x: Dataset.from_tensors(stop_at_one(x))),
    "interleave": lambda: Dataset.range(3).interleave(lambda x: Dataset.from_tensors(stop_at_one(x)), cycle_length=2),
    "an inner map": lambda: Dataset.range(3).flat_map(lambda x: Dataset.from_tensors(x).map(stop_at_one)),
    "an inner generator": lambda: Dataset.range(3).flat_map(
        lambda x: Dataset.from_generator(lambda: iter([0]) if x != 1 else stop())
    ),
    "scan": lambda: Dataset.range(3).scan(np.int64(0), lambda state, x: (state, stop_at_one(x))),
    "group_by_window, key": lambda: Dataset.range(3).group_by_window(stop_at_one, lambda key, window: window, 2),
    "group_by_window, reduce": lambda: Dataset.range(3).group_by_window(lambda x: x, stop, 1),
    "group_by_window, size": lambda: Dataset.range(3).group_by_window(
        lambda x: x, lambda key, window: window, window_size_func=stop
    ),
    "bucket_by_sequence_length": lambda: Dataset.range(3).bucket_by_sequence_length(stop, [2], [1, 1]),
    "rejection_resample": lambda: Dataset.range(3).rejection_resample(stop, [1.0]),
    "from_generator": lambda: Dataset.from_generator(stop),
    "from_generator, iter": lambda: Dataset.from_generator(StoppingIterable),
}


@pytest.mark.parametrize("name", sorted(USER_CODE))
def test_stop_iteration_of_user_code_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        read(USER_CODE[name]())
    with pytest.raises(RuntimeError, match="StopIteration"):
        read(USER_CODE[name]().cache(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="StopIteration"):
        read(Dataset.range(2).flat_map(lambda _: USER_CODE[name]().snapshot(tmp_path / "inner")))
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(strategy.experimental_distribute_dataset(USER_CODE[name]().batch(2)))


@pytest.mark.parametrize("name", ["flat_map", "group_by_window, reduce", "from_generator", "map"])
def test_stop_iteration_of_user_code_is_not_taken_for_an_empty_dataset(name: str) -> None:
    failing = {**USER_CODE, "flat_map": lambda: Dataset.range(3).flat_map(stop), "map": lambda: stream().map(stop)}
    with pytest.raises(RuntimeError, match="StopIteration"):
        _ = failing[name]().element_spec


def test_a_loader_that_stops_before_its_first_batch_is_an_error() -> None:
    class Loader:
        def __init__(self) -> None:
            self.calls = 0

        def __iter__(self) -> Iterator[Any]:
            self.calls += 1
            return stop() if self.calls > 1 else iter([np.arange(4)])  # type: ignore[no-any-return]

    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed = strategy.experimental_distribute_dataset(Loader())
    assert len(list(distributed)) == 1
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(distributed)


def test_the_spec_of_an_empty_list_of_batches_is_an_error() -> None:
    distributed = mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset([])
    with pytest.raises(StructureError, match="the dataset has no element"):
        _ = distributed.element_spec


SHRINKING: dict[str, Callable[[Dataset], Dataset]] = {
    "generator": lambda d: d,
    "shuffle": lambda d: d.shuffle(2),
    "interleave": lambda d: d.interleave(Dataset.from_tensors, cycle_length=2),
    "scan": lambda d: d.scan(np.int64(0), lambda state, x: (state, x)),
    "repeat": lambda d: d.repeat(2),
    "cache": lambda d: d.cache(),
}


@pytest.mark.parametrize("name", sorted(SHRINKING))
def test_a_position_beyond_the_end_is_an_error(name: str) -> None:
    size = [6]
    dataset = SHRINKING[name](Dataset.from_generator(lambda: iter(np.arange(size[0]))))
    reading = iter(dataset)
    for _ in range(5):
        next(reading)
    state = json.loads(json.dumps(reading.get_state()))
    size[0] = 2
    with pytest.raises(InputError, match="fewer elements than when the position was saved"):
        iter_from(dataset, state)


def iter_from(dataset: Dataset, state: Any) -> list[Any]:
    reading = iter(dataset)
    reading.set_state(state)
    return read(reading)
