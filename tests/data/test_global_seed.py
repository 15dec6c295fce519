"""The global seed of datasets in elastic jobs: each call of the training function draws the seeds of a new worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.data import global_seed


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    before = global_seed.counts()
    global_seed.set_global_seed(3)
    yield
    global_seed.restore_counts(before)
    global_seed._counts_before.clear()


def order() -> list[int]:
    return [int(one) for one in mr.data.Dataset.range(20).shuffle(20)]


def test_a_function_that_is_called_again_has_the_orders_of_its_first_call() -> None:
    order()
    global_seed._note_counts()
    first = [order(), order()]
    assert first[0] != first[1]
    global_seed._restore_first_counts()
    assert [order(), order()] == first


def test_datasets_after_a_resumed_snapshot_have_the_orders_of_an_undisturbed_run() -> None:
    checkpoint = mr.checkpoint.Checkpoint(step=0)
    order()
    snapshot = begin_snapshot(checkpoint).finish()
    expected = order()
    global_seed.set_global_seed(3)
    restore_snapshot(checkpoint, snapshot)
    assert order() == expected


def test_functions_have_the_random_numbers_of_the_first_call() -> None:
    def drawn(dataset: mr.data.Dataset) -> list[float]:
        return [float(one) for one in dataset]

    def training_function() -> list[list[float]]:
        return [drawn(made_before), drawn(mr.data.Dataset.range(3).map(noise))]

    def noise(_: object) -> object:
        return tf.random.uniform(())

    made_before = mr.data.Dataset.range(3).map(noise)
    global_seed._note_counts()
    first = training_function()
    assert first[0] != first[1]
    global_seed._restore_first_counts()
    assert training_function() == first
