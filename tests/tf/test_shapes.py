from __future__ import annotations

import pickle

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
