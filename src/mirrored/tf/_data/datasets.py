"""`tf.data.Dataset`: the datasets of `mirrored.data`, with tensors as elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array, fits, owned
from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.data.elements import Element, handed_out
from mirrored.data.keys import represents_keys, with_keys
from mirrored.data.pipeline import dataset
from mirrored.errors import EndOfDataError
from mirrored.tf._data.host_arrays import OnHostArrays, in_64_bits, initial_state, on_host, strings_as_bytes
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError, OutOfRangeError


def _tensors(element: PyTree) -> Any:
    """Converts the arrays in a dataset element to tensors; strings and object arrays stay in host memory.

    Integers that do not fit into the 32 bits of a tensor stay on the host, too. Nested datasets are not converted.
    """
    return tree_map(_tensor, element)


def _tensor(leaf: Leaf) -> Any:
    if represents_keys(leaf):
        return with_keys(leaf)
    leaf = strings_as_bytes(leaf)
    if _stays(leaf):
        return on_host(leaf)
    host = owned(leaf)
    if isinstance(host, np.ndarray) and not host.dtype.isnative:
        return as_array(host)  # JAX takes only the machine's byte order
    return jnp.asarray(host)


def _arrays(element: Element) -> Any:
    return tree_map(strings_as_bytes, handed_out(element))


def _stays(leaf: Leaf) -> bool:
    if isinstance(leaf, bytes) or not hasattr(leaf, "dtype") or leaf.dtype.hasobject:
        return True
    return isinstance(leaf, np.ndarray | np.generic) and not fits(np.asarray(leaf), array_dtype(leaf.dtype))


class EndOfSequenceError(OutOfRangeError, EndOfDataError):
    """Error raised by a dataset iterator that has no further element.

    It is both TensorFlow's `OutOfRangeError` and mirrored's `EndOfDataError`.
    """


class NoValueError(InvalidArgumentError, EndOfDataError):
    """Error raised by `Optional.get_value` if there is no element because the dataset has ended.

    It is both TensorFlow's `InvalidArgumentError` and mirrored's `EndOfDataError`.
    """


def _end_error(called: str, *, found: str, rule: str, remedy: str) -> Any:
    kind = NoValueError if called == "Optional.get_value" else EndOfSequenceError
    return kind.of(called, found=found, rule=rule, remedy=remedy)


class Dataset(dataset.Dataset):
    """A `mirrored.data.Dataset` whose elements are tensors (`tf.data.Dataset`).

    `as_numpy_iterator` yields NumPy arrays. Functions, as of `map`, receive NumPy arrays with the methods `numpy`,
    `get_shape` and `set_shape` of tensors.
    """

    adapted: ClassVar[Callable[[Callable[..., Any]], Callable[..., Any]]] = OnHostArrays
    initial: ClassVar[Callable[[PyTree], PyTree]] = staticmethod(initial_state)
    computing: ClassVar[Callable[[], AbstractContextManager[Any]]] = staticmethod(in_64_bits)
    hand_out: ClassVar[Callable[[Any], Any]] = staticmethod(_tensors)
    number_out: ClassVar[Callable[[int], Any]] = staticmethod(jnp.asarray)
    end_error: ClassVar[Callable[..., EndOfDataError]] = staticmethod(_end_error)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns a new iterator whose elements contain NumPy arrays, with strings as bytes objects."""
        return self.iterator(_arrays)


TextLineDataset = Dataset.from_text_lines
TFRecordDataset = Dataset.from_tfrecords
CsvDataset = Dataset.from_csv
make_csv_dataset = Dataset.csv_batches
