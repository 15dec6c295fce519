"""The demo's data: the 1,797 images of handwritten digits (8 x 8 pixels) in scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from mirrored.extras import load

# 357 test images leave a last batch that no number of replicas divides evenly: 357 = 5 * 64 + 37.
NUM_TEST = 357


@dataclasses.dataclass(frozen=True)
class Examples:
    """A set of images with their labels (the digits).

    Attributes:
        images: f32[examples, 8, 8, 1], 0 to 1.
        labels: i32[examples], 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Examples:
        """Returns the images and labels at the given indices."""
        return Examples(self.images[indices], self.labels[indices])


def load_digits() -> tuple[Examples, Examples]:
    """Loads the handwritten digits; returns the training and test examples, with the same split each time.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    bunch = load("sklearn.datasets", called="mirrored demo", extra="demo", package="scikit-learn").load_digits()
    images = np.asarray(bunch.images, np.float32)[..., None] / 16.0
    everything = Examples(images, np.asarray(bunch.target, np.int32))
    order = np.random.default_rng(7).permutation(len(everything))
    return everything.take(order[NUM_TEST:]), everything.take(order[:NUM_TEST])


@dataclasses.dataclass
class Batches:
    """An iterable of global batches ``(images, labels)``; with a seed, the examples are shuffled again in every pass.

    Attributes:
        examples: The examples.
        size: The global batch size; the last batch of a pass may be smaller.
        seed: The seed of the order; None keeps the order of the examples.
    """

    examples: Examples
    size: int
    seed: int | None = None
    _passes: int = dataclasses.field(default=0, init=False)

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.arange(len(self.examples))
        if self.seed is not None:
            order = np.random.default_rng((self.seed, self._passes)).permutation(order)
        self._passes += 1
        for start in range(0, len(order), self.size):
            batch = self.examples.take(order[start : start + self.size])
            yield batch.images, batch.labels
