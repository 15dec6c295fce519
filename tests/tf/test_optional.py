"""`tf.experimental.Optional`: the shapes and dtypes of the element that it may have."""

from __future__ import annotations

from typing import Any

import pytest

import mirrored.tf as tf
from mirrored.data.options import Optional


@pytest.fixture
def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices({"x": tf.ones([4, 3]), "y": tf.ones([4])}).batch(4, drop_remainder=True)


def test_an_optional_of_a_dataset_knows_its_spec_with_and_without_an_element(data: Any) -> None:
    iterator = iter(data)
    first, second = iterator.get_next_as_optional(), iterator.get_next_as_optional()
    assert (first.has_value(), second.has_value()) == (True, False)
    assert first.element_spec == second.element_spec == iterator.element_spec == data.element_spec


@pytest.mark.parametrize("compiled", [True, False])
def test_an_optional_of_a_distributed_dataset_has_a_spec_per_replica(data: Any, compiled: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed = strategy.experimental_distribute_dataset(data)
    found = []

    def look() -> None:
        iterator = iter(distributed)
        for _ in range(2):
            found.append(iterator.get_next_as_optional().element_spec)

    (tf.function(look) if compiled else look)()
    assert found == [distributed.element_spec] * 2
    assert [one.shape for one in found[0]["x"].components] == [(2, 3), (2, 3)]


def test_an_optional_without_an_iterator_has_no_spec() -> None:
    with pytest.raises(ValueError, match="not made by get_next_as_optional"):
        Optional(1).element_spec  # noqa: B018
