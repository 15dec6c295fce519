"""Typed PRNG keys (`jax.random.key`) in dataset elements. NumPy has no such arrays.

A pipeline carries keys as NumPy records of their key data. The name of the record's field contains the implementation
(``threefry2x32``). So the array has the shape of the keys, NumPy slices, stacks and pads it like any other, and keys of
two implementations cannot be stacked. Records become keys where user code gets an element, and on the devices.
"""

from __future__ import annotations

from typing import Any, Final, TypeGuard

import jax
import numpy as np

from mirrored._jax.arrays import implementation_of, is_key, is_key_dtype
from mirrored._jax.traces import eager
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree

_PREFIX: Final = "jax.random.key:"


def as_records(keys: jax.Array) -> np.ndarray:
    """Returns an array of typed PRNG keys as an array of records with the same shape."""
    with eager():
        data = np.ascontiguousarray(jax.random.key_data(keys))
    return data.view(_dtype(keys.dtype, data.shape[-1], data.dtype)).reshape(keys.shape)


def record_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Returns the dtype of the records of typed PRNG keys, given the keys' dtype; None for any other dtype."""
    if not is_key_dtype(dtype):
        return None
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
    return _dtype(dtype, data.shape[-1], data.dtype)


def _dtype(dtype: Any, size: int, words: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype([(_PREFIX + implementation_of(dtype), words, (size,))])


def implementation(dtype: np.dtype[Any]) -> str | None:
    """Returns the PRNG implementation of the keys that records of a dtype represent; None for any other dtype."""
    names = dtype.names
    if names is None or len(names) != 1 or not names[0].startswith(_PREFIX):
        return None
    return names[0].removeprefix(_PREFIX)


def data_of(records: np.ndarray | np.generic) -> np.ndarray:
    """Returns the key data ``[..., words]`` of records."""
    array = np.asarray(records)
    assert array.dtype.names is not None
    data: np.ndarray = array[array.dtype.names[0]]
    return data


def as_keys(data: Any, impl: str) -> jax.Array:
    """Returns the typed PRNG keys that key data represents, on the data's devices."""
    with eager():
        return jax.random.wrap_key_data(data, impl=impl)


def represents_keys(leaf: object) -> TypeGuard[np.ndarray | np.void]:
    """Returns whether a leaf of an element is an array of records that represent keys."""
    # The names first: most arrays have none.
    return isinstance(leaf, (np.ndarray, np.void)) and bool(leaf.dtype.names) and implementation(leaf.dtype) is not None


def with_keys(element: PyTree) -> Any:
    """Returns an element with typed PRNG keys in place of their records."""
    return tree_map(_with_keys, element)


def _with_keys(leaf: Any) -> Any:
    impl = implementation(leaf.dtype) if represents_keys(leaf) else None
    return leaf if impl is None else as_keys(data_of(leaf).copy(), impl)


def contains_keys(value: PyTree) -> bool:
    """Returns whether a pytree contains typed PRNG keys."""
    return any(map(is_key, jax.tree.leaves(value)))
