from __future__ import annotations

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf


def test_prints_as_tensorflow() -> None:
    assert repr(tf.float32) == "tf.float32"
    assert str(tf.float32) == "<dtype: 'float32'>"
    assert repr(tf.bool) == "tf.bool"


@pytest.mark.parametrize("other", [np.float32, np.dtype("float32"), jnp.float32, "float32", tf.float32])
def test_equals_the_same_type_from_elsewhere(other: object) -> None:
    assert tf.float32 == other
    assert other == tf.float32
    assert not tf.float32 != other


@pytest.mark.parametrize("other", [np.int32, "float16", "no type", None, 3, tf.float64])
def test_differs_from_anything_else(other: object) -> None:
    assert tf.float32 != other


def test_is_a_dtype_to_jax_and_numpy() -> None:
    assert jnp.zeros(2, tf.bfloat16).dtype == tf.bfloat16
    assert np.zeros(2, tf.int16).dtype == tf.int16
    assert tf.zeros([1], tf.int32).astype(tf.float32).dtype == tf.float32


def test_hashes_like_the_numpy_type_it_equals() -> None:
    assert {tf.float32: 1}[np.dtype("float32")] == 1


def test_properties() -> None:
    assert (tf.float32.name, tf.float32.size, tf.float32.as_numpy_dtype) == ("float32", 4, np.float32)
    assert tf.float32.is_floating
    assert not tf.float32.is_integer
    assert tf.bfloat16.is_floating
    assert tf.uint8.is_integer
    assert tf.uint8.is_unsigned
    assert tf.bool.is_bool
    assert tf.complex64.is_complex
    assert tf.complex64.real_dtype == tf.float32
    assert tf.float32.base_dtype is tf.float32
    assert (tf.uint8.min, tf.uint8.max) == (0, 255)
    assert tf.bool.max is True
    assert tf.float32.max == np.finfo(np.float32).max
    assert tf.int32.limits == (0, 2**31 - 1)
    assert tf.float32.as_datatype_enum == 1
    assert int(tf.int32) == 3
    assert tf.float32.is_compatible_with("float32")
    assert tf.float32.is_numpy_compatible


@pytest.mark.parametrize(
    ("given", "expected"),
    [(float, "float32"), (int, "int32"), (bool, "bool"), ("half", "float16"), ("double", "float64"), (np.int8, "int8")],
)
def test_as_dtype(given: object, expected: str) -> None:
    assert tf.as_dtype(given).name == expected
    assert tf.as_dtype(given) is tf.dtypes.as_dtype(expected)


@pytest.mark.parametrize("given", [None, "strings", "no type", np.dtype("M8[s]")])
def test_as_dtype_refuses_what_is_no_type(given: object) -> None:
    with pytest.raises(TypeError, match="Cannot convert the argument `type_value`"):
        tf.as_dtype(given)


def test_survives_pickling_and_copying() -> None:
    assert pickle.loads(pickle.dumps(tf.bfloat16)) is tf.bfloat16
    assert copy.deepcopy(tf.bfloat16) is tf.bfloat16


def test_64_bit_types_become_32_bit_ones_quietly() -> None:
    assert tf.cast([1.5], tf.float64).dtype == tf.float32
    assert tf.constant([1], tf.int64).dtype == tf.int32
    assert tf.zeros([1], tf.complex128).dtype == tf.complex64
