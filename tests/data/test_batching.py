"""Detects single examples that are distributed as if they were batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.data import Dataset, InputOptions
from mirrored.data.pipeline.batching import is_batched
from mirrored.errors import StructureError

X, Y = np.arange(24, dtype=np.float32).reshape(6, 4), np.arange(6)

SINGLE: dict[str, Callable[[], Dataset]] = {
    "rows": lambda: Dataset.from_tensor_slices(X),
    "rows of the facade": lambda: tf.data.Dataset.from_tensor_slices(X),
    "features of one size": lambda: Dataset.from_tensor_slices({"a": X, "b": X}),
    "features of several sizes": lambda: Dataset.from_tensor_slices((X, X[:, :3], Y)),
    "numbers": lambda: Dataset.range(6),
    "mapped": lambda: Dataset.from_tensor_slices(X).map(lambda x: 2 * x),
    "mapped at random": lambda: Dataset.from_tensor_slices(X).random_map(lambda x, rng: x + rng.normal()),
    "shuffled": lambda: Dataset.from_tensor_slices(X).shuffle(6).repeat(2).prefetch(2),
    "filtered": lambda: Dataset.from_tensor_slices(X).filter(lambda x: x[0] > 3).map(lambda x: x).take(2).skip(1),
    "cached": lambda: Dataset.from_tensor_slices(X).cache(),
    "zipped": lambda: Dataset.zip((Dataset.from_tensor_slices(X), Dataset.from_tensor_slices(X))),
    "concatenated": lambda: Dataset.from_tensor_slices(X).concatenate(Dataset.from_tensor_slices(X)),
    "unbatched": lambda: Dataset.from_tensor_slices(X).batch(2).unbatch(),
}
BATCHED: dict[str, Callable[[], Dataset]] = {
    **{f"{name}, batched": lambda make=make: make().batch(2) for name, make in SINGLE.items()},
    "padded": lambda: Dataset.from_tensor_slices(X).padded_batch(2),
    "rebatched": lambda: Dataset.from_tensor_slices(X).batch(4).rebatch(2),
    "mapped batches": lambda: (
        Dataset.from_tensor_slices(X).batch(2).map(lambda x: x + 1).shuffle(2).cache().prefetch(1)
    ),
    "stream": lambda: Dataset.from_generator(lambda: iter(X)).batch(2),
}
UNKNOWN: dict[str, Callable[[], Dataset]] = {
    "whole tensors": lambda: Dataset.from_tensors(X),
    "generator of batches": lambda: Dataset.from_generator(lambda: iter([X, X])),
    "batches loaded by number": lambda: Dataset.range(3).map(lambda n: X[2 * n : 2 * n + 2]),
    "numbered batches": lambda: Dataset.from_tensor_slices(X).batch(2).enumerate().map(lambda i, x: x + i),
    "zip with a range": lambda: Dataset.zip((Dataset.range(9), Dataset.range(6).batch(2))).map(lambda i, x: {"x": x}),
    "numbered windows": lambda: (
        Dataset.from_tensor_slices(X).window(2).flat_map(lambda one: one.batch(2)).enumerate().map(lambda i, x: x + i)
    ),
    "windows": lambda: Dataset.from_tensor_slices(X).window(2).flat_map(lambda window: window.batch(2)),
}


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("name", SINGLE)
def test_single_examples_are_refused_in_every_layout(devices: int, name: str) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    distributed = strategy.experimental_distribute_dataset(SINGLE[name]())
    with pytest.raises(StructureError, match=r"not batched(.|\n)*\.batch\(global_batch_size\)"):
        iter(distributed)


@pytest.mark.parametrize("name", [*BATCHED, *UNKNOWN])
def test_batches_are_not_refused(name: str) -> None:
    made = {**BATCHED, **UNKNOWN}[name]()
    assert is_batched(made.node) is (None if name in UNKNOWN else True)
    assert len(list(mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(made))) > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.from_tensor_slices(X).batch(2).enumerate(),
        lambda: Dataset.from_tensor_slices(X).batch(2).enumerate().map(lambda i, x: {"number": i, "x": x}),
        lambda: [{"number": 3, "x": X[:2]}],
    ],
    ids=["enumerate", "map", "list"],
)
def test_a_scalar_beside_a_batch_is_named(make: Callable[[], Any]) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(StructureError, match=r"is a scalar beside arrays of the shape \(2,(.|\n)*numpy\.full\(2, x\)"):
        list(strategy.experimental_distribute_dataset(make()))


def test_single_examples_go_to_replicas_from_a_function() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed = strategy.distribute_datasets_from_function(lambda _: Dataset.from_tensor_slices(X))
    assert len(list(distributed)) == 3


class Rows:
    """A loader of examples."""

    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: [(x, y) for x, y in zip(X, Y, strict=True)], r"numpy\.stack"),
        (Rows, r"numpy\.stack"),
        (lambda: [{"a": X[0], "b": X[0, :3]}], r"numpy\.stack"),
        (lambda: pytest.importorskip("grain").MapDataset.range(6), r"on the Grain dataset"),
        (lambda: Dataset.from_generator(lambda: iter(Y)), r"\.batch\(global_batch_size\)"),
    ],
    ids=["list", "loader", "features", "grain", "generator"],
)
def test_the_remedy_is_what_the_source_offers(make: Callable[[], Any], remedy: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(StructureError, match=rf"not batched(.|\n)*{remedy}"):
        list(strategy.experimental_distribute_dataset(make()))


def test_arrays_with_a_batch_size_are_batches() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    assert len(list(strategy.experimental_distribute_dataset((X, Y), InputOptions(batch_size=2)))) == 3


VECTORS = [np.arange(3, dtype=np.float32) + i for i in range(4)]
AMBIGUOUS: dict[str, Callable[[], Any]] = {
    "list": lambda: VECTORS,
    "generator": lambda: Dataset.from_generator(lambda: iter(VECTORS)),
    "with targets": lambda: [(vector, vector) for vector in VECTORS],
}
CLEAR: dict[str, Callable[[], Any]] = {
    "batched by a step": lambda: Dataset.range(6).batch(3),
    "even": lambda: [vector[:2] for vector in VECTORS],
    "matrices": lambda: [np.stack([vector] * 3) for vector in VECTORS],
    "a last batch that is shorter": lambda: [VECTORS[0], VECTORS[1][:1]],
    "one batch": lambda: VECTORS[:1],
}


@pytest.mark.parametrize("name", [*AMBIGUOUS, *CLEAR])
def test_vectors_that_do_not_split_evenly_are_warned_of_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    assert len(list(strategy.experimental_distribute_dataset({**AMBIGUOUS, **CLEAR}[name]()))) > 0
    warned = [record.getMessage() for record in caplog.records if "is not batched" in record.getMessage()]
    assert len(warned) == (name in AMBIGUOUS)
    assert all("vector of 3 numbers" in message for message in warned)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.range(8).window(2).batch(2),
        lambda: Dataset.range(8).map(lambda x: {"a": x, "b": x}).window(2).batch(2),
        lambda: Dataset.range(8).window(2).padded_batch(2),
        lambda: Dataset.zip((Dataset.range(4), Dataset.range(8).window(2))).batch(2),
    ],
    ids=["batch", "columns", "padded_batch", "zip"],
)
def test_batches_of_windows_are_refused_with_the_remedy(make: Callable[[], Dataset]) -> None:
    with pytest.raises(StructureError, match=r"the elements are datasets(.|\n)*flat_map"):
        next(iter(make()))


def test_the_remedies_for_batches_of_windows_work() -> None:
    windows = Dataset.range(8).window(2)
    assert next(iter(windows.flat_map(lambda window: window.batch(2)).batch(2))).tolist() == [[0, 1], [2, 3]]
    columns = Dataset.range(8).map(lambda x: (x, -x)).window(2)
    made = columns.flat_map(lambda a, b: Dataset.zip((a, b)).batch(2)).batch(2)
    assert [column.tolist() for column in next(iter(made))] == [[[0, 1], [2, 3]], [[0, -1], [-2, -3]]]


@pytest.mark.parametrize("other", [lambda n: {"odd": n}, lambda n: {"even": n, "odd": n}, lambda n: n])
def test_windows_of_elements_of_two_structures_are_refused(other: Callable[[Any], Any]) -> None:
    mixed = Dataset.range(4).map(lambda n: {"even": n} if n % 2 == 0 else other(n))
    with pytest.raises(StructureError, match=r"element 0 of the window is (?s:.*)element 1 is"):
        next(iter(mixed.window(4)))
