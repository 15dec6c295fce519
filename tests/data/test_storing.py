"""The element file: `save`, `load`, `cache(filename)`, `snapshot`."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf
from data.readings import assert_resumes_everywhere, read
from mirrored.data import Dataset
from mirrored.data.pipeline.storing import FILE, Stored
from mirrored.errors import ArgumentError, DataFileError, InputError, StructureError


def varied() -> Dataset:
    def element(n: Any) -> Any:
        return {
            "b": (np.full((n % 3, 2), n, np.float32), np.float64(n) / 3),
            "a": (b"x" * int(n), (np.array([b"", b"yz"], object),)),
            "half": np.asarray(n, jnp.bfloat16),
            "flag": np.bool_(n % 2),
        }

    return Dataset.range(7).map(element)


def same(found: Any, expected: Any) -> None:
    if isinstance(found, dict):
        assert set(found) == set(expected)
        for key, part in found.items():
            same(part, expected[key])
    elif isinstance(found, tuple):
        assert isinstance(expected, tuple)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    varied().save(tmp_path / "deep" / "folder")
    loaded = Dataset.load(tmp_path / "deep" / "folder")
    for found, expected in zip(loaded, varied(), strict=True):
        same(found, expected)
    assert (len(loaded), loaded.element_spec) == (7, varied().element_spec)


def test_loaded_elements_are_found_by_position(tmp_path: Path) -> None:
    Dataset.range(40).map(lambda n: n * n).save(tmp_path)
    loaded = Dataset.load(tmp_path)
    assert sorted(read(loaded.shuffle(40, seed=3))) == [n * n for n in range(40)]
    assert read(loaded.shard(4, 1)) == [n * n for n in range(1, 40, 4)]
    assert_resumes_everywhere(loaded.batch(3))


def test_an_empty_dataset(tmp_path: Path) -> None:
    Dataset.range(3).take(0).save(tmp_path)
    assert (read(Dataset.load(tmp_path)), Dataset.load(tmp_path).element_spec) == ([], Dataset.range(3).element_spec)


def saved(dataset: Dataset, folder: Path) -> Dataset:
    dataset.save(folder)
    return Dataset.load(folder)


WRITTEN: dict[str, Callable[[Dataset, Path], Dataset]] = {
    "save": saved,
    "cache": Dataset.cache,
    "snapshot": Dataset.snapshot,
}


@pytest.mark.parametrize("keep", WRITTEN)
@pytest.mark.parametrize("dtype", [">i4", ">f4", ">c8", ">M8[s]"])
def test_arrays_of_the_other_byte_order_keep_their_values(keep: str, dtype: str, tmp_path: Path) -> None:
    numbers = np.arange(4).reshape(2, 2).astype(dtype)
    found = list(WRITTEN[keep](Dataset.from_tensor_slices(numbers).map(lambda x: x), tmp_path))
    np.testing.assert_array_equal(found, numbers)


@pytest.mark.parametrize("keep", WRITTEN)
@pytest.mark.parametrize(
    "rows",
    [np.array([["a", 3], ["b", 5]], object), np.array([[None, b"a"]], object), np.zeros(2, [("x", "i4"), ("y", "f4")])],
    ids=["numbers", "None", "records"],
)
def test_what_would_change_in_a_file_is_refused(keep: str, rows: Any, tmp_path: Path) -> None:
    with pytest.raises(StructureError, match="only strings and bytes|without records"):
        list(WRITTEN[keep](Dataset.from_tensor_slices(rows), tmp_path))


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize("keep", WRITTEN)
def test_named_tuples_are_refused(keep: str, tmp_path: Path) -> None:
    points = Dataset.from_tensor_slices({"a": Point(np.arange(3), np.arange(3))})
    with pytest.raises(StructureError, match="Point.*\n.*without records or named tuples"):
        list(WRITTEN[keep](points, tmp_path))


@pytest.mark.parametrize("keep", ["cache", "snapshot"])
@pytest.mark.parametrize("source", ["positions", "stream"])
def test_what_is_kept_is_read_once(keep: str, source: str, tmp_path: Path) -> None:
    seen: list[int] = []

    def note(n: Any) -> Any:
        seen.append(int(n))
        return n * 2

    def kept() -> Dataset:
        numbers = Dataset.range(5) if source == "positions" else Dataset.from_generator(lambda: iter(np.arange(5)))
        made: Dataset = getattr(numbers.map(note), keep)(tmp_path / "kept")
        return made

    dataset = kept()
    assert [read(dataset), read(dataset)] == [[0, 2, 4, 6, 8]] * 2
    assert seen.count(4) <= 2  # once for the elements, once more at most for their spec
    before = len(seen)
    assert read(kept().repeat(2)) == [0, 2, 4, 6, 8] * 2  # as another run of the program
    assert len(seen) == before
    assert_resumes_everywhere(dataset.batch(2))


def test_an_interruption_leaves_what_was_there(tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path)

    def broken(n: Any) -> Any:
        if n == 2:
            raise KeyboardInterrupt
        return n + 10

    with pytest.raises(KeyboardInterrupt):
        Dataset.range(3).map(broken).save(tmp_path)
    assert read(Dataset.load(tmp_path)) == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    Dataset.range(2).save(tmp_path)
    assert read(Dataset.load(tmp_path)) == [0, 1]


def test_saving_is_an_iteration_with_random_numbers_of_its_own(tmp_path: Path) -> None:
    drawn = [Dataset.range(4).map(lambda n: tf.random.uniform([])) for _ in range(2)]
    found = [read(saved(dataset, tmp_path / "drawn")) for dataset in (*drawn, drawn[0])]
    assert len({*found[0], *found[1], *found[2]}) == 12
    shuffled = Dataset.range(50).shuffle(50, seed=0)
    orders = [
        read(saved(shuffled, tmp_path / "shuffled")),
        read(shuffled),
        read(saved(shuffled, tmp_path / "shuffled")),
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [read(again) for again in [Dataset.range(50).shuffle(50, seed=0)] for _ in range(3)]


def test_a_cache_reads_saved_elements_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_again: list[int] = []
    item = Stored.__getitem__
    monkeypatch.setattr(Stored, "__getitem__", lambda self, n: (read_again.append(n), item(self, n))[1])
    dataset = saved(Dataset.range(4), tmp_path).cache()
    assert [read(dataset) for _ in range(2)] == [[0, 1, 2, 3]] * 2
    assert read_again == [0, 1, 2, 3]


def test_no_warning_of_an_exhausted_iterator_when_an_empty_dataset_is_saved(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(saved(Dataset.range(3).filter(lambda n: n > 3), tmp_path)) == []


def test_endless_datasets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the dataset is infinite\n.*\n.*take\(n\)"):
        Dataset.range(3).repeat().save(tmp_path)
    assert not list(tmp_path.iterdir())


UNEQUAL = {
    "dtype": lambda n: np.float32(1) if n else np.int32(1),
    "rank": lambda n: np.ones(2) if n else np.ones((2, 2)),
    "keys": lambda n: {"a": n} if n else {"b": n},
    "kind": lambda n: (n,) if n else n,
    "text": lambda n: b"x" if n else n,
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_elements_are_alike(name: str, tmp_path: Path) -> None:
    dataset = Dataset.from_generator(lambda: (UNEQUAL[name](n) for n in range(3)))
    with pytest.raises(StructureError, match=r"Dataset.save: .* the first ones have \{"):
        dataset.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_keys_are_text(tmp_path: Path) -> None:
    with pytest.raises(StructureError, match=r"a dictionary with the keys \[1\]"):
        Dataset.from_tensors({1: 2.0}).save(tmp_path)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [cut, emptied, flipped, Path.unlink])
def test_damaged_files(damage: Any, tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path)
    damage(tmp_path / FILE)
    with pytest.raises(DataFileError, match=FILE):
        Dataset.load(tmp_path)


def test_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrored.data.pipeline.storing._VERSION", 2)
    Dataset.range(3).save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(DataFileError, match="it has version 2, but this version of mirrored reads 1"):
        Dataset.load(tmp_path)


def test_damage_of_one_element_is_found_when_it_is_read(tmp_path: Path) -> None:
    Dataset.from_tensor_slices(np.arange(300.0).reshape(3, 100)).save(tmp_path)
    file = tmp_path / FILE
    data = bytearray(file.read_bytes())
    head = 16 + len(json.dumps({"version": 1, "structure": {"dtype": "float64", "shape": [100]}}))
    data[head + 12 + 8 + 3] ^= 1
    file.write_bytes(bytes(data))
    loaded = Dataset.load(tmp_path)
    assert float(next(iter(loaded.skip(1)))[0]) == 100.0
    with pytest.raises(DataFileError, match="record 0 of .*CRC"):
        next(iter(loaded))


def test_the_names_of_tensorflow(tmp_path: Path) -> None:
    dataset = tf.data.Dataset.range(3).map(lambda n: {"n": n})
    dataset.save(str(tmp_path / "saved"), compression="GZIP")
    loaded = tf.data.Dataset.load(str(tmp_path / "saved"), element_spec=dataset.element_spec)
    assert [int(one["n"]) for one in loaded.cache(str(tmp_path / "kept"))] == [0, 1, 2]
    shutil.rmtree(tmp_path / "saved")
    assert [int(one["n"]) for one in loaded.cache(str(tmp_path / "kept"))] == [0, 1, 2]


def test_only_saved_elements_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "a" / FILE, tmp_path / "b"):
        path.write_text("important")
        with pytest.raises(ArgumentError, match=r"was not written by Dataset|b is a file"):
            Dataset.range(2).save(tmp_path / path.relative_to(tmp_path).parts[0])
        assert path.read_text() == "important"


def test_a_relative_folder_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    kept = [Dataset.range(2).cache("cached"), Dataset.range(2).snapshot("shot")]
    monkeypatch.chdir(tmp_path / "b")
    assert [read(one) for one in kept] == [[0, 1], [0, 1]]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["cached", "shot"]
    assert not list((tmp_path / "b").iterdir())


SEEDED: dict[str, Callable[[], Dataset]] = {
    "shuffle": lambda: Dataset.range(10).shuffle(10),
    "shuffle of a stream": lambda: Dataset.range(10).filter(lambda x: True).shuffle(4),
    "random_map": lambda: Dataset.range(10).random_map(lambda x, rng: x + 10 * rng.integers(100)),
    "shuffle twice": lambda: Dataset.range(10).shuffle(10).map(lambda x: x).shuffle(3),
    "rejection_resample": lambda: Dataset.range(30).rejection_resample(lambda x: x % 2, [0.2, 0.8]).map(lambda _, x: x),
    "random": lambda: Dataset.random().take(10),
}
KEEPS: dict[str, Callable[[Dataset, Path], Dataset]] = {
    "memory": lambda d, _: d.map(lambda x: x).cache(),
    "memory of a stream": lambda d, _: d.filter(lambda x: True).cache(),
    "cache": lambda d, path: d.cache(path),
    "snapshot": lambda d, path: d.snapshot(path),
    "both": lambda d, path: d.cache(path / "a").shuffle(5).snapshot(path / "b"),
    "memory after a file": lambda d, path: d.cache(path).cache(),
    "counted": lambda d, path: d.cache(path).scan(np.int64(0), lambda state, x: (state, x)),
    "windows": lambda d, path: d.cache(path).window(1).flat_map(lambda one: one),
    "shuffled again": lambda d, path: d.cache(path).shuffle(5),
    "epochs": lambda d, path: d.cache(path).repeat(2),
    "batches": lambda d, path: d.cache(path).batch(1).rebatch(1).unbatch(),
}


def cut_after(dataset: Dataset, count: int) -> tuple[Any, list[Any], list[Any]]:
    """Returns the position after `count` elements, these elements, and the others."""
    reading = iter(dataset)
    head = read(itertools.islice(reading, count))
    return json.loads(json.dumps(reading.get_state())), head, read(reading)


def rest(dataset: Dataset, state: Any) -> list[Any]:
    reading = iter(dataset)
    reading.set_state(state)
    return read(reading)


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("keep", sorted(KEEPS))
@pytest.mark.parametrize("name", sorted(SEEDED))
@pytest.mark.first(66)
def test_a_position_is_restored_where_the_elements_are_not_kept(
    name: str, keep: str, count: int, tmp_path: Path
) -> None:
    """Every machine builds the dataset anew, so that its shuffles draw other seeds."""

    def on(machine: str) -> Dataset:
        return KEEPS[keep](SEEDED[name](), tmp_path / machine)

    state, _, expected = cut_after(on("first"), count)
    assert rest(on("second"), state) == expected
    assert rest(on("second"), state) == expected  # in the file that the second machine has written
    assert rest(on("first"), state) == expected


@pytest.mark.parametrize("keep", sorted({*KEEPS} - {"memory", "memory of a stream"}))
@pytest.mark.parametrize("name", sorted(SEEDED))
def test_a_position_in_a_file_of_an_earlier_run_has_the_seeds_of_the_file(name: str, keep: str, tmp_path: Path) -> None:
    def on(machine: str) -> Dataset:
        return KEEPS[keep](SEEDED[name](), tmp_path / machine)

    read(on("first"))
    state, _, expected = cut_after(on("first"), 4)
    assert rest(on("second"), state) == expected
    shutil.rmtree(tmp_path / "first")
    assert rest(on("first"), state) == expected


@pytest.mark.parametrize("keep", ["memory", "memory of a stream"])
def test_a_position_is_restored_where_other_elements_are_in_memory(keep: str, tmp_path: Path) -> None:
    state, _, expected = cut_after(KEEPS[keep](SEEDED["shuffle"](), tmp_path), 4)
    used = KEEPS[keep](SEEDED["shuffle"](), tmp_path)
    before = read(used)
    assert rest(used, state) == expected
    assert read(used)[4:] == expected  # later epochs have the seeds of the restored run
    assert sorted(before) == list(range(10))


@pytest.mark.parametrize("keep", ["cache", "snapshot", "counted"])
def test_elements_in_another_order_are_refused(keep: str, tmp_path: Path) -> None:
    state, _, _ = cut_after(KEEPS[keep](SEEDED["shuffle"](), tmp_path / "first"), 4)
    other = KEEPS[keep](SEEDED["shuffle"](), tmp_path / "second")
    read(other)
    with pytest.raises(InputError, match=r"Dataset\.(cache|snapshot): .*other shuffle seeds"):
        rest(other, state)


@pytest.mark.parametrize("keep", ["cache", "snapshot", "counted", "both", "epochs", "shuffled again"])
@pytest.mark.parametrize("refused", [False, True])
def test_the_same_dataset_is_restored_after_its_folder_is_deleted(keep: str, refused: bool, tmp_path: Path) -> None:
    state, _, expected = cut_after(KEEPS[keep](SEEDED["shuffle"](), tmp_path / "first"), 4)
    other = KEEPS[keep](SEEDED["shuffle"](), tmp_path / "second")
    read(other)
    if refused:
        with pytest.raises(InputError, match=r"Dataset\.(cache|snapshot): .*other shuffle seeds"):
            rest(other, state)
    shutil.rmtree(tmp_path / "second")
    assert rest(other, state) == expected
    assert (tmp_path / "second").exists()


def test_a_file_that_another_dataset_has_written_anew_is_read(tmp_path: Path) -> None:
    kept = Dataset.range(3).cache(tmp_path / "kept")
    assert read(kept) == [0, 1, 2]
    shutil.rmtree(tmp_path / "kept")
    assert read(Dataset.range(10, 13).cache(tmp_path / "kept")) == [10, 11, 12]
    assert read(kept) == [10, 11, 12]


def test_an_iteration_goes_on_while_its_folder_is_deleted(tmp_path: Path) -> None:
    kept = Dataset.range(3).cache(tmp_path / "kept")
    reading = iter(kept)
    first = read(itertools.islice(reading, 1))
    shutil.rmtree(tmp_path / "kept")
    assert first + read(reading) == [0, 1, 2]


def test_a_refused_position_leaves_the_iterator_and_its_dataset_unchanged(tmp_path: Path) -> None:
    state, _, _ = cut_after(KEEPS["cache"](SEEDED["shuffle"](), tmp_path / "first"), 4)
    other = KEEPS["cache"](SEEDED["shuffle"](), tmp_path / "second")
    order = read(other)
    reading = iter(other)
    head = read(itertools.islice(reading, 2))
    with pytest.raises(InputError, match="other shuffle seeds"):
        reading.set_state(state)
    assert head + read(reading) == order
    assert read(other) == order


def _five(n: Any) -> Dataset:
    return Dataset.range(n * 5, n * 5 + 5)


NOT_RANDOM: dict[str, Callable[[], Dataset]] = {
    "flat_map": lambda: Dataset.range(3).flat_map(_five),
    "interleave": lambda: Dataset.range(3).interleave(_five, cycle_length=2, num_parallel_calls=2),
    "nested": lambda: Dataset.range(3).flat_map(lambda n: _five(n).flat_map(_five)),
    "group_by_window": lambda: Dataset.range(15).group_by_window(lambda x: x % 3, lambda _, d: d, window_size=2),
    "given seed": lambda: Dataset.range(3).flat_map(lambda n: _five(n).shuffle(5, seed=1)),
}
_OLDER = Dataset.range(5).shuffle(5)
RANDOM: dict[str, Callable[[Path], Dataset]] = {
    "flat_map": lambda _: Dataset.range(3).flat_map(lambda n: _five(n).shuffle(5)),
    "in the last one": lambda _: Dataset.range(3).flat_map(lambda n: _five(n) if n < 2 else _five(n).shuffle(5)),
    "older": lambda _: Dataset.range(3).flat_map(lambda n: _OLDER),
    "outer order": lambda _: Dataset.range(30).shuffle(30).flat_map(_five),
    "nested": lambda _: Dataset.range(3).flat_map(lambda n: _five(n).flat_map(lambda m: _five(m).shuffle(5))),
    "after a file": lambda path: Dataset.range(3).flat_map(lambda n: _five(n).shuffle(5)).cache(path / "inner"),
    "after memory": lambda _: Dataset.range(3).flat_map(lambda n: _five(n).shuffle(5)).cache(),
    "after inner files": lambda path: Dataset.range(3).flat_map(
        lambda n: _five(n).flat_map(lambda m: _five(m).shuffle(5)).cache(path / f"inner-{n}")
    ),
}


@pytest.mark.parametrize("name", NOT_RANDOM)
def test_a_file_of_inner_datasets_without_random_steps_fits_every_position(name: str, tmp_path: Path) -> None:
    def made(machine: str) -> Dataset:
        return NOT_RANDOM[name]().cache(tmp_path / machine)

    state, _, expected = cut_after(made("first"), 3)
    read(made("second"))
    assert rest(made("second"), state) == expected
    again, _, _ = cut_after(made("second"), 3)
    assert rest(made("first"), again) == expected


@pytest.mark.parametrize("name", NOT_RANDOM)
def test_files_of_elements_of_files_fit_every_position_if_nothing_is_random(name: str, tmp_path: Path) -> None:
    def made(machine: str) -> Dataset:
        return NOT_RANDOM[name]().snapshot(tmp_path / machine / "inner").cache(tmp_path / machine / "outer")

    state, _, expected = cut_after(made("first"), 3)
    read(made("second"))
    assert rest(made("second"), state) == expected


@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.parametrize("name", RANDOM)
def test_a_file_of_inner_datasets_in_another_random_order_is_refused(name: str, rewrites: bool, tmp_path: Path) -> None:
    def made(machine: str) -> Dataset:
        return RANDOM[name](tmp_path / machine).cache(tmp_path / machine / "outer")

    state, _, _ = cut_after(made("first"), 3)
    other = made("second")
    read(other)
    if rewrites:  # from the elements of the inner cache, if there is one
        shutil.rmtree(tmp_path / "second" / "outer")
        read(other)
    with pytest.raises(InputError, match="other shuffle seeds"):
        rest(other, state)


def test_the_files_of_inner_datasets_have_seeds_of_their_own(tmp_path: Path) -> None:
    def made() -> Dataset:
        return Dataset.range(2).flat_map(lambda n: Dataset.range(n * 5, n * 5 + 5).shuffle(5).cache(tmp_path / f"{n}"))

    read(made())
    state, _, expected = cut_after(made(), 3)
    assert rest(made(), state) == expected


@pytest.mark.parametrize("keep", ["memory", "memory of a stream", "cache", "snapshot", "epochs", "batches"])
def test_the_element_spec_fills_no_cache(keep: str, tmp_path: Path) -> None:
    def on(machine: str) -> Dataset:
        drawn = Dataset.range(6).map(lambda n: tf.random.uniform([]))
        return KEEPS[keep](drawn, tmp_path / machine).map(lambda x: x)

    first, second = on("first"), on("second")
    specs = first.element_spec, second.element_spec
    assert not (tmp_path / "first").exists()
    found = [read(first), read(second)]
    assert set(found[0]).isdisjoint(found[1])  # without a seed, other numbers in every dataset
    assert (first.element_spec, second.element_spec) == specs
    assert [read(first), read(second)] == found


@pytest.mark.parametrize("keep", sorted(KEEPS))
def test_a_position_is_restored_after_the_element_spec(keep: str, tmp_path: Path) -> None:
    def on(machine: str) -> Dataset:
        return KEEPS[keep](SEEDED["shuffle"](), tmp_path / machine).map(lambda x: x)

    state, _, expected = cut_after(on("first"), 4)
    other = on("second")
    assert other.element_spec == on("first").element_spec
    assert rest(other, state) == expected
