from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError
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


def forge(variable):
    """Stores an array whose copies differ in their last element."""
    sharding = variable.read_value().sharding
    copies = [jax.device_put(np.float32([0, 0, k]), device) for k, device in enumerate(jax.devices()[:2])]
    variable.assign(jax.make_array_from_single_device_arrays((3,), sharding, copies))


def keras_variable(scope):
    import keras

    with scope:
        variable = keras.Variable(np.zeros(3, np.float32))
    return variable, variable.mirrored


def keras_model(scope):
    import keras

    with scope:
        layer = keras.layers.Dense(3)
        layer.build((None, 2))
    return layer, layer.bias.mirrored


def nnx_variable(scope):
    from flax import nnx

    with scope:
        variable = nnx.Param(jnp.zeros(3))
    return variable, nnx_leaf(variable)


def nnx_model(scope):
    from flax import nnx

    with scope:
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    return model, nnx_leaf(model.bias)


def nnx_leaf(variable):
    return jax.tree.leaves(variable, is_leaf=lambda one: isinstance(one, mr.Variable))[0]


@pytest.mark.parametrize("make", [keras_variable, keras_model, nnx_variable, nnx_model])
def test_copies_of_variables_of_frameworks_are_compared(make):
    """Keras' variables and models were skipped, silently."""
    owner, variable = make(mr.MirroredStrategy(jax.devices()[:2]).scope())
    tree = {
        "owner": [owner],
        "functions": [jnp.sin, jax.nn.relu, mr.function(len), len],
        "array": np.ones(2),
        "name": "x",
        "none": None,
    }
    assert_copies_equal(tree)
    forge(variable)
    with pytest.raises(AssertionError, match="1 of 3 elements differ in their bits"):
        assert_copies_equal(tree)


def test_objects_whose_variables_are_unknown_are_refused():
    class Model:
        def __init__(self):
            self.w = mr.Variable(1.0)

    with pytest.raises(ArgumentError, match="a leaf of type Model(.|\n)*pass a list of the variables"):
        assert_copies_equal([Model()])
