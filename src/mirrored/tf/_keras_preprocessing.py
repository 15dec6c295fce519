"""Makes Keras layers that need TensorFlow, such as `StringLookup`, raise an error that names an alternative."""

from __future__ import annotations

from typing import Any, Final

from mirrored.tf._errors import UnimplementedError

# The module of each layer below `keras.src.layers.preprocessing`, the layer, and what to use instead of it.
_REMEDIES: Final = {
    "string_lookup": ("StringLookup", "map strings in Dataset.map with a dict of Python ({word: index}), before batch"),
    "integer_lookup": ("IntegerLookup", "map integers in Dataset.map with a dict of Python, before batch"),
    "text_vectorization": (
        "TextVectorization",
        "split texts in Dataset.map with tf.strings.split, map the words with a dict of Python, and pad them with "
        "Dataset.padded_batch",
    ),
    "hashing": ("Hashing", "compute zlib.crc32(word) % num_bins in Dataset.map"),
    "hashed_crossing": ("HashedCrossing", "compute zlib.crc32 of the joined values modulo num_bins in Dataset.map"),
}
MODULES: Final = tuple(_REMEDIES)


class Absent:
    """A placeholder for the missing TensorFlow in a Keras module; accessing any attribute raises an error.

    Args:
        module: The name of the module, which defines one layer.
    """

    def __init__(self, module: str) -> None:
        self._layer, self._remedy = _REMEDIES[module]

    def __getattr__(self, name: str) -> Any:
        """Raises an error for every attribute; the error names the Keras layer and an alternative.

        Raises:
            UnimplementedError: Always.
        """
        raise UnimplementedError.of(
            f"tf.keras.layers.{self._layer}",
            found="TensorFlow is not installed",
            rule="Keras implements this layer with TensorFlow's tables and tensors of strings, on every backend",
            remedy=self._remedy,
        )
