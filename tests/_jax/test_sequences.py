from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.sequences import beside, stacked
from mirrored.errors import ArgumentError


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        ([0.5, 0.25], "bfloat16", "bfloat16"),
        ((1, 2), "float16", "float16"),
        ([True, False], "int8", "int8"),
        ([0.5], "int32", "float32"),
        ([1j], "float32", "complex64"),
        ([], "int32", "int32"),
        ([np.float64(0.1)], "bfloat16", "bfloat16"),
        ([[1], [2]], "bool", "int32"),
        ([2**40], "float32", "float32"),
    ],
)
def test_a_list_takes_the_dtype_of_the_array_as_a_number_does(value: list[float], dtype: str, found: str) -> None:
    converted = beside(value, jnp.dtype(dtype))
    assert type(converted) is np.ndarray
    assert converted.dtype == found
    np.testing.assert_array_equal(converted, np.asarray(value).astype(found))


def test_lists_of_arrays_are_stacked_in_the_dtype_of_the_array() -> None:
    converted = beside([jnp.float32(0.5), [2][0]], jnp.dtype("bfloat16"))
    assert isinstance(converted, jax.Array)
    assert converted.dtype == "bfloat16"
    assert converted.tolist() == [0.5, 2.0]


def test_numbers_in_a_list_promote_the_arrays_beside_them() -> None:
    assert stacked([jnp.int32(1), 0.5]).tolist() == [1.0, 0.5]
    assert stacked([[jnp.bfloat16(1)], (0.5,)]).dtype == "bfloat16"


@pytest.mark.parametrize(("value", "dtype"), [([300], "uint8"), ([-1], "uint32"), ([2**40], "int32")])
def test_integers_that_do_not_fit_are_refused(value: list[int], dtype: str) -> None:
    with pytest.raises(ArgumentError, match=rf"the list \[{value[0]}\] beside an array of dtype {dtype}"):
        beside(value, jnp.dtype(dtype))


@pytest.mark.parametrize("value", [["text"], [None, 1], [{}]])
def test_what_is_no_number_is_refused(value: list[object]) -> None:
    with pytest.raises(TypeError, match="unsupported type"):
        beside(value, jnp.dtype("float32"))


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        beside([[1], [1, 2]], jnp.dtype("float32"))
