from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.testing import assert_close_by_norm, assert_copies_equal, assert_same_bits


def test_equal_trees_have_the_same_bits():
    tree = {"a": jnp.arange(3.0), "b": [np.int32(1), jnp.array(jnp.nan), jnp.ones((0, 2), jnp.bfloat16)]}
    assert_same_bits(tree, {"a": np.arange(3, dtype=np.float32), "b": tree["b"]})


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({"w": np.array([1.0, 2.0, np.nextafter(3.0, 4)])}, r"leaf\['w'\]: 1 of 3 elements differ .* first at \(2,\)"),
        ({"w": np.array([1.0, 2.0, 3.0], np.float32)}, r"leaf\['w'\]: dtype float32, expected float64"),
        ({"w": np.ones((3, 1))}, r"leaf\['w'\]: shape \(3, 1\), expected \(3,\)"),
        ({"v": np.ones(3)}, "structure "),
    ],
)
def test_different_bits_name_the_leaf_and_the_difference(actual, message):
    with pytest.raises(AssertionError, match=message):
        assert_same_bits(actual, {"w": np.array([1.0, 2.0, 3.0])})


def test_negative_zero_has_other_bits():
    with pytest.raises(AssertionError, match=r"1 of 1 elements differ in their bits, first at \(\)"):
        assert_same_bits(np.float32(-0.0), np.float32(0.0))


def test_bits_of_a_transposed_matrix_are_compared_by_element():
    matrix = np.arange(6.0).reshape(2, 3)
    assert_same_bits(np.asfortranarray(matrix), matrix)
    with pytest.raises(AssertionError, match=r"1 of 6 elements differ in their bits, first at \(1, 0\)"):
        assert_same_bits(np.asfortranarray(np.where(matrix == 3, 7, matrix)), matrix)


def test_close_by_norm_lets_the_order_of_sums_show():
    expected = np.array([1000.0, 1e-3])
    assert_close_by_norm(expected + [1e-4, 1e-4], expected, 1e-6)


@pytest.mark.parametrize("actual", [[1000.0, 2.0], [np.nan, 1e-3], [np.inf, 1e-3]])
def test_far_by_norm_is_refused(actual):
    with pytest.raises(AssertionError, match="leaf: differs by .* of the norm 1e"):
        assert_close_by_norm(np.array(actual), np.array([1000.0, 1e-3]), 1e-6)


def test_close_by_norm_of_zero_wants_zero():
    assert_close_by_norm(np.zeros(2), np.zeros(2))
    with pytest.raises(AssertionError, match="differs by 1e-09"):
        assert_close_by_norm(np.array([1e-9, 0.0]), np.zeros(2))


def test_close_by_norm_compares_complex_and_half_values():
    assert_close_by_norm(jnp.ones(2, jnp.bfloat16), np.ones(2, np.float32))
    with pytest.raises(AssertionError, match="differs by 1"):
        assert_close_by_norm(np.array([1 + 1j]), np.array([1.0]))


def test_copies_of_a_mirrored_variable_are_compared():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        w = mr.Variable(jnp.zeros(3), name="w")
    assert_copies_equal({"w": w, "rate": 0.1})
    sharding = w.read_value().sharding
    copies = [jax.device_put(np.array([0, 0, k], np.float32), device) for k, device in enumerate(jax.devices()[:2])]
    forged = jax.make_array_from_single_device_arrays((3,), sharding, copies)
    w.assign(forged)
    with pytest.raises(
        AssertionError, match=r"variable 'w' on .*: 1 of 3 elements differ in their bits, first at \(2,\)"
    ):
        assert_copies_equal([w])
