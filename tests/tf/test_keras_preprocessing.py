"""Keras' preprocessing layers: those that need TensorFlow say what to use instead; the others work."""

from __future__ import annotations

from pathlib import Path
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


@pytest.mark.parametrize("kind", ["Dataset", "rows"])
def test_a_dataset_is_normalized(kind: str) -> None:
    data = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]], np.float32)
    rows = tf.data.Dataset.from_tensor_slices((data, [0, 1, 2])).map(lambda x, y: x)
    layer = keras.layers.Normalization(axis=-1)
    layer.adapt(rows.batch(2) if kind == "Dataset" else rows)
    np.testing.assert_allclose(np.asarray(layer(data)), (data - data.mean(0)) / data.std(0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["image", "text", "audio"])
def test_functions_that_read_folders_name_what_to_use_instead(kind: str, tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / f"0.{ {'image': 'png', 'text': 'txt', 'audio': 'wav'}[kind] }").write_bytes(b"")
    options = {"output_sequence_length": 10} if kind == "audio" else {}
    with pytest.raises(
        NotImplementedError, match=rf"utils\.{kind}_dataset_from_directory: TensorFlow is not[\s\S]*remedy: "
    ):
        getattr(keras.utils, f"{kind}_dataset_from_directory")(tmp_path, verbose=False, **options)


@pytest.mark.parametrize("feature", ["float", "float_normalized", "float_discretized"])
def test_feature_spaces_name_what_to_use_instead(feature: str) -> None:
    space = keras.utils.FeatureSpace({"a": feature})
    data = {"a": np.arange(4, dtype=np.float32)}
    for call in (space.adapt, space) if feature == "float" else (space.adapt,):
        with pytest.raises(NotImplementedError, match=r"tf\.keras\.utils\.FeatureSpace: TensorFlow is not installed"):
            call(tf.data.Dataset.from_tensor_slices(data) if call == space.adapt else data)
