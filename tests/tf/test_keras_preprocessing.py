"""Keras' preprocessing layers: those that need TensorFlow say what to use instead; the others work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

keras: Any = tf.keras
LAYERS: dict[str, dict[str, Any]] = {
    "StringLookup": {"vocabulary": ["a", "b"]},
    "IntegerLookup": {"vocabulary": [10, 20]},
    "TextVectorization": {},
    "Hashing": {"num_bins": 5},
    "HashedCrossing": {"num_bins": 5},
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_strings_name_what_to_use_instead(name: str) -> None:
    with pytest.raises(
        NotImplementedError, match=rf"tf\.keras\.layers\.{name}: TensorFlow is not installed[\s\S]*Dataset\.map"
    ):
        getattr(keras.layers, name)(**LAYERS[name])


def test_the_remedy_for_a_vocabulary() -> None:
    vocabulary = {b"a": 1, b"b": 2}
    words = tf.data.Dataset.from_tensor_slices(["a", "z", "b"])
    indices = words.map(lambda word: np.int32(vocabulary.get(bytes(word), 0))).batch(3)
    assert next(iter(indices)).tolist() == [1, 0, 2]


def test_bins_are_computed_from_a_dataset() -> None:
    layer = keras.layers.Discretization(num_bins=2)
    layer.adapt(tf.data.Dataset.from_tensor_slices(np.arange(10, dtype=np.float32)).batch(5))
    assert np.asarray(layer(tf.constant([1.0, 9.0]))).tolist() == [0, 1]
