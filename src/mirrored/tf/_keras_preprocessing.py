"""Makes parts of Keras that need TensorFlow, such as `StringLookup`, raise an error that names an alternative."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mirrored.tf._errors import UnimplementedError

_STRINGS: Final = "Keras implements this layer with TensorFlow's tables and tensors of strings, on every backend"
_FEATURES: Final = "Keras implements it with TensorFlow's tensors, on every backend"
_FILES: Final = "Keras reads the files with TensorFlow, on every backend, unless it has a format='grain'"
_GRAIN: Final = "pass format='grain', for a dataset of the library Grain, which fit and strategies accept"


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of Keras that needs TensorFlow.

    Attributes:
        name: Its name below `tf.keras`.
        rule: What Keras does with TensorFlow.
        remedy: What to use instead.
    """

    name: str
    rule: str
    remedy: str


# By the module below `keras.src.layers.preprocessing` that defines it.
_LAYERS: Final = {
    "string_lookup": _Part(
        "layers.StringLookup",
        _STRINGS,
        "map strings in Dataset.map with a dict of Python ({word: index}), before batch",
    ),
    "integer_lookup": _Part(
        "layers.IntegerLookup", _STRINGS, "map integers in Dataset.map with a dict of Python, before batch"
    ),
    "text_vectorization": _Part(
        "layers.TextVectorization",
        _STRINGS,
        "split texts in Dataset.map with tf.strings.split, map the words with a dict of Python, and pad them with "
        "Dataset.padded_batch",
    ),
    "hashing": _Part("layers.Hashing", _STRINGS, "compute zlib.crc32(word) % num_bins in Dataset.map"),
    "hashed_crossing": _Part(
        "layers.HashedCrossing", _STRINGS, "compute zlib.crc32 of the joined values modulo num_bins in Dataset.map"
    ),
    "feature_space": _Part(
        "utils.FeatureSpace",
        _FEATURES,
        "call a layer for each feature (Normalization, Discretization, Rescaling, CategoryEncoding) and concatenate "
        "the results; map strings in Dataset.map with a dict of Python",
    ),
}
# By the kind of data.
_DATASETS: Final = {
    "image": _Part("utils.image_dataset_from_directory", _FILES, _GRAIN),
    "text": _Part(
        "utils.text_dataset_from_directory",
        _FILES,
        "list the files with Dataset.list_files, and read them in Dataset.map with tf.io.read_file; or pass "
        "format='grain', for a dataset of the library Grain",
    ),
    "audio": _Part(
        "utils.audio_dataset_from_directory",
        _FILES,
        "list the files with Dataset.list_files, and decode them in Dataset.map with Python's module wave",
    ),
}


class Absent:
    """A placeholder for the missing TensorFlow in a Keras module; accessing any attribute raises an error.

    Args:
        part: What the module defines.
    """

    def __init__(self, part: _Part) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        """Raises an error for every attribute; the error names the part of Keras and an alternative.

        Raises:
            UnimplementedError: Always.
        """
        raise UnimplementedError.of(
            f"tf.keras.{self._part.name}",
            found="TensorFlow is not installed",
            rule=self._part.rule,
            remedy=self._part.remedy,
        )


def absent(preprocessing: Any, datasets: Mapping[str, Any]) -> Iterator[tuple[Any, Absent]]:
    """Yields the modules of Keras that need TensorFlow, unless it is installed, each with its placeholder for `tf`.

    Args:
        preprocessing: The package of Keras' preprocessing layers.
        datasets: Keras' modules that build datasets, by kind of data.
    """
    modules = [(getattr(preprocessing, name), part) for name, part in _LAYERS.items()]
    modules += [(datasets[kind], part) for kind, part in _DATASETS.items()]
    for module, part in modules:
        if not module.tf.available:
            yield module, Absent(part)
