"""`tf.keras.utils.split_dataset`, for `mirrored.data` datasets and arrays."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrored import data
from mirrored.data.elements import stack
from mirrored.tf._data.host_arrays import as_bytes_array, is_text
from mirrored.tf._errors import InvalidArgumentError

if TYPE_CHECKING:
    from mirrored.data import Dataset


def splitting(original: Callable[..., Any], sizes_of: Callable[..., tuple[int, int]]) -> Callable[..., Any]:
    """Wraps `keras.utils.split_dataset` to split `mirrored.data` datasets and arrays without TensorFlow or PyTorch.

    Args:
        original: Keras' function, for PyTorch's datasets.
        sizes_of: Keras' function from the two sizes and the number of examples to the two numbers of examples.
    """

    @functools.wraps(original)
    def split_dataset(
        dataset: Any,
        left_size: float | None = None,
        right_size: float | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        preferred_backend: str | None = None,
    ) -> Any:
        if preferred_backend == "torch" or not (_is_ours(dataset) or isinstance(dataset, (np.ndarray, list, tuple))):
            return original(dataset, left_size, right_size, shuffle, seed, preferred_backend)
        if left_size is None and right_size is None:
            raise InvalidArgumentError.of(
                "split_dataset",
                found="left_size=None and right_size=None",
                rule="the size of at least one part must be given",
                remedy="pass left_size=0.8, or a number of examples",
            )
        examples, batch_size = _examples_of(dataset)
        if shuffle:
            random.Random(seed).shuffle(examples)
        left, right = _sizes(sizes_of, left_size, right_size, len(examples))
        parts = [_dataset_of(part) for part in (examples[:left], examples[len(examples) - right :])]
        return tuple(part if batch_size is None else part.batch(batch_size) for part in parts)

    return split_dataset


def _sizes(
    sizes_of: Callable[..., tuple[int, int]], left_size: float | None, right_size: float | None, count: int
) -> tuple[int, int]:
    try:
        return sizes_of(left_size, right_size, count)
    except ValueError as error:
        raise InvalidArgumentError.of(
            "split_dataset",
            found=f"left_size={left_size} and right_size={right_size} for {count} example{'s' * (count != 1)}",
            rule="both parts must have examples, and together at most all of them",
            remedy="pass at least two examples"
            if count < 2
            else f"pass a number of examples from 1 to {count - 1} for each part, or fractions that give such numbers",
        ) from error


def _is_ours(dataset: object) -> bool:
    """Returns whether an object is a `mirrored.data.Dataset`, without importing that class."""
    pipelines = sys.modules.get("mirrored.data.pipeline.dataset")
    return pipelines is not None and isinstance(dataset, pipelines.Dataset)


def _examples_of(dataset: Any) -> tuple[list[Any], int | None]:
    """Returns the examples of a dataset or of arrays, and the batch size (None if the examples are not batched)."""
    if _is_ours(dataset):
        transformations = sys.modules["mirrored.data.pipeline.transformations"]  # loaded with the class of datasets
        batch_size = dataset._node.size if isinstance(dataset._node, transformations.Batched) else None
        return list(dataset if batch_size is None else dataset.unbatch()), batch_size
    given = [dataset] if isinstance(dataset, np.ndarray) else dataset
    arrays = [as_bytes_array(one) if is_text(one) else np.asarray(one) for one in given]
    if not all(one.ndim for one in arrays) or len({len(one) for one in arrays}) != 1:
        raise InvalidArgumentError.of(
            "split_dataset",
            found=f"arrays of the shapes {', '.join(str(list(one.shape)) for one in arrays)}" if arrays else "no array",
            rule="all arrays must have the same number of examples, their first dimension",
            remedy="pass one array, a dataset, or arrays of one length",
        )
    return list(arrays[0] if isinstance(dataset, np.ndarray) else zip(*arrays, strict=True)), None


def _dataset_of(examples: list[Any]) -> Dataset:
    # The attribute loads the pipelines, which `tf.keras` alone does not need.
    return data.Dataset.from_tensor_slices(stack(examples, "split_dataset")).prefetch()
