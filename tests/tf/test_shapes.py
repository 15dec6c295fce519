from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf


def test_shapes_know_what_is_known() -> None:
    shape = tf.TensorShape([None, 3])
    assert (shape.rank, shape.ndims, len(shape), shape.dims, shape.as_list()) == (2, 2, 2, [None, 3], [None, 3])
    assert not shape.is_fully_defined()
    assert shape.num_elements() is None
    assert tf.TensorShape([2, 3]).num_elements() == 6
    assert shape[1] == 3
    assert shape[:1] == tf.TensorShape([None])
    assert list(shape) == [None, 3]
    assert repr(shape) == "TensorShape([None, 3])"
    assert str(shape) == "(None, 3)"


def test_unknown_rank() -> None:
    shape = tf.TensorShape(None)
    assert shape.rank is None
    assert not shape
    assert shape.is_compatible_with([1, 2, 3])
    assert repr(shape) == "TensorShape(None)"
    with pytest.raises(ValueError, match="unknown TensorShape"):
        shape.as_list()


@pytest.mark.parametrize("size", [2.5, np.float32(2.5)])
def test_a_fraction_is_no_dimension(size: float) -> None:
    with pytest.raises(TypeError, match="a dimension value must be an integer or None"):
        tf.TensorShape([size])


def test_equals_tuples_and_lists() -> None:
    assert tf.TensorShape([2, 3]) == (2, 3)
    assert tf.zeros([2, 3]).shape == tf.TensorShape([2, 3])
    assert tf.TensorShape([2]) != [3]
    assert tf.TensorShape([2]) != "two"
    assert hash(tf.TensorShape([2, 3])) == hash(tf.TensorShape((2, 3)))


def test_combining() -> None:
    assert tf.TensorShape([None, 3]).merge_with([2, None]) == (2, 3)
    assert tf.TensorShape(None).merge_with([2]) == (2,)
    assert tf.TensorShape([1]).concatenate([2]) == (1, 2)
    assert tf.TensorShape([1]) + [2] == (1, 2)
    assert tf.TensorShape(None).with_rank(2) == [None, None]
    assert tf.TensorShape(3) == (3,)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="incompatible"):
        tf.TensorShape([2]).merge_with([3])
    with pytest.raises(ValueError, match="must be >= 0"):
        tf.TensorShape([-2])


def test_specs() -> None:
    spec = tf.TensorSpec([None, 2], tf.float32, name="x")
    assert repr(spec) == "TensorSpec(shape=(None, 2), dtype=tf.float32, name='x')"
    assert spec.is_compatible_with(tf.zeros([5, 2]))
    assert not spec.is_compatible_with(tf.zeros([5, 3]))
    assert not spec.is_compatible_with(tf.zeros([5, 2], tf.int32))
    assert tf.TensorSpec.from_tensor(tf.zeros([1])) == tf.TensorSpec([1])
    assert tf.TensorSpec.from_spec(spec, name="y").name == "y"
    assert tf.TensorSpec([3, 2]).most_specific_compatible_shape(tf.TensorSpec([4, 2])) == [None, 2]
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len({spec, tf.TensorSpec([None, 2], name="x")}) == 1


def test_a_function_with_a_signature_takes_any_size() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def total(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x)

    assert total(tf.ones([3])) == 3
    assert total(tf.ones([5])) == 5
    with pytest.raises((ValueError, TypeError), match="signature|shape"):
        total(tf.ones([2, 2]))


def test_shapes_are_tuples() -> None:
    shape = tf.TensorShape([2, 3])
    assert isinstance(shape, tuple)
    assert tuple(shape) == (2, 3) == shape
    assert {shape: 1}[(2, 3)] == 1
    assert (1, *shape) == (1, 2, 3)
    assert (1,) + shape == shape.concatenate([4])[:0] + [1, 2, 3]
    assert repr(shape[::-1]) == "TensorShape([3, 2])"
    assert shape != (2, 4)
    assert tf.TensorShape(None) != ()
    assert tf.TensorShape([]) == ()
    assert [bool(one) for one in (shape, tf.TensorShape([]), tf.TensorShape(None))] == [True, False, False]
    assert np.zeros(shape).shape == tf.zeros(shape).shape == jax.jit(lambda: jnp.ones(shape))().shape == (2, 3)
    assert pickle.loads(pickle.dumps(shape)) == copy.deepcopy(shape) == shape


def test_shapes_of_variables_and_specs() -> None:
    variable = tf.Variable(np.ones((2, 3), np.float32))
    assert variable.shape.as_list() == [2, 3]
    assert variable.shape.is_compatible_with([None, 3])
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        assert tf.Variable([1.0]).shape.rank == 1
    dataset = tf.data.Dataset.from_tensor_slices(np.ones((4, 2))).batch(2)
    assert dataset.element_spec.shape.as_list() == [None, 2]
    assert tf.TensorSpec([None, 2]).shape[1:].num_elements() == 2


def test_ranks_are_checked() -> None:
    shape = tf.TensorShape([1, 2])
    assert shape.with_rank_at_least(2) is shape
    assert shape.most_specific_compatible_shape([1, 3]) == tf.TensorShape([1, None])
    assert shape.most_specific_compatible_shape([1]).rank is None
    for call, message in (
        (lambda: shape.with_rank_at_least(3), "must have rank at least 3"),
        (lambda: shape.assert_has_rank(3), "must have rank 3"),
        (lambda: shape.assert_same_rank([1]), "must have the same rank"),
        (lambda: tf.TensorShape([1, None]).assert_is_fully_defined(), "is not fully defined"),
        (lambda: len(tf.TensorShape(None)), "unknown TensorShape"),
        (lambda: list(tf.TensorShape(None)), "unknown TensorShape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_parts_of_an_element_spec_are_tensor_specs():
    spec = tf.data.Dataset.from_tensor_slices(np.ones((4, 2), "float32")).batch(2).element_spec
    assert isinstance(spec, tf.TensorSpec)
    assert spec == tf.TensorSpec([None, 2], tf.float32)
    assert tf.TensorSpec([None, 2], tf.float32) == spec
    assert spec != tf.TensorSpec([None, 2], tf.float32, name="named")
    assert not isinstance(np.ones(2), tf.TensorSpec)
