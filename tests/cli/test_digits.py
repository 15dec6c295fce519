from __future__ import annotations

import numpy as np
import pytest

from mirrored.cli.demo.digits import NUM_TEST, Batches, Examples, load_digits


@pytest.fixture
def few():
    return Examples(np.arange(10, dtype=np.float32).reshape(10, 1, 1, 1), np.arange(10, dtype=np.int32))


def test_digits_are_split_once_and_for_all():
    train, test = load_digits()
    assert (len(train), len(test)) == (1797 - NUM_TEST, NUM_TEST)
    assert train.images.shape == (1440, 8, 8, 1)
    assert train.images.dtype == np.float32
    assert (train.images.min(), train.images.max()) == (0.0, 1.0)
    assert set(train.labels) == set(test.labels) == set(range(10))
    again, _ = load_digits()
    np.testing.assert_array_equal(again.images, train.images)


def test_every_pass_serves_every_example_once_in_another_order(few):
    batches = Batches(few, size=4, seed=3)
    first, second = ([label for _, labels in batches for label in labels.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_same_seed_gives_the_same_order(few):
    first, second = ([labels.tolist() for _, labels in Batches(few, size=4, seed=3)] for _ in range(2))
    assert first == second


def test_without_a_seed_the_order_stays_and_the_last_batch_is_partial(few):
    assert len(Batches(few, size=4)) == 3
    assert [labels.tolist() for _, labels in Batches(few, size=4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_images_go_with_their_labels(few):
    for images, labels in Batches(few, size=3, seed=1):
        np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
