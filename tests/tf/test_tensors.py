from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.0, "float32"),
        (1, "int32"),
        (True, "bool"),
        (1j, "complex64"),
        ([1, 2.5], "float32"),
        (np.float16(1), "float16"),
        (np.ones(2, np.int8), "int8"),
        (np.ones(2), "float32"),
    ],
)
def test_dtypes_of_constants(value: object, dtype: str) -> None:
    found = tf.constant(value)
    assert isinstance(found, tf.Tensor)
    assert found.dtype == dtype
    assert not found.weak_type


def test_constants_are_concrete_while_tracing() -> None:
    @tf.function
    def run() -> tf.Tensor:
        return tf.zeros([int(tf.constant(3))])

    assert run().shape == (3,)


@pytest.mark.parametrize("value", [[1, "text"], [object()], {"a": 1}])
def test_what_is_no_tensor(value: object) -> None:
    with pytest.raises(TypeError, match="unsupported type"):
        tf.constant(value)


def test_a_float_is_no_integer_constant() -> None:
    with pytest.raises(TypeError, match="Cannot convert 1.5"):
        tf.constant(1.5, tf.int32)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: tf.constant([x, 2.0], tf.int32),
        lambda x: tf.constant([[x], [2]], tf.uint8),
        lambda x: tf.constant(x, tf.int32),
        lambda x: tf.convert_to_tensor([x, 2], tf.int32),
        lambda x: tf.tensor_scatter_nd_update(tf.zeros([3], tf.int32), [[0]], [x]),
        lambda x: tf.TensorArray(tf.int32, size=1).write(0, [x, x]),
        lambda x: tf.linalg.diag([1, 2], padding_value=0.5),
    ],
)
def test_floats_are_not_cut_to_integers(cut: Callable[[Any], Any]) -> None:
    for function in (cut, tf.function(cut)):
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError), match="Cannot convert"):
            function(tf.constant(1.7))


def test_integers_beside_tensors_keep_their_dtype() -> None:
    assert tf.constant([tf.constant(1, tf.uint32), 3_000_000_000], tf.uint32).numpy().tolist() == [1, 3_000_000_000]
    assert tf.constant([tf.constant(1), 2], tf.float32).dtype == tf.float32
    assert tf.convert_to_tensor([tf.constant(1.5), 2], dtype_hint=tf.int32).numpy().tolist() == [1.5, 2.0]


def test_one_hot_keeps_the_fraction_of_one_value() -> None:
    np.testing.assert_allclose(tf.one_hot([0, 1], 2, on_value=1, off_value=0.1), [[1, 0.1], [0.1, 1]])
    assert tf.one_hot([0], 2, on_value=tf.constant(1, tf.float16), off_value=0.0).dtype == tf.float16
    assert tf.one_hot([0], 2, on_value=5, off_value=0).dtype == tf.int32


def test_a_constant_has_as_many_values_as_its_shape() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="3 values were passed for the shape"):
        tf.constant([1, 2, 3], shape=[2, 2])


def test_conversion_keeps_the_dtype_of_tensors() -> None:
    with pytest.raises(ValueError, match="requested dtype int32"):
        tf.convert_to_tensor(tf.ones([2]), tf.int32)
    assert tf.convert_to_tensor(tf.ones([2]), dtype_hint=tf.int32).dtype == tf.float32
    assert tf.convert_to_tensor([1, 2], dtype_hint=tf.float32).dtype == tf.float32
    assert tf.convert_to_tensor([1.5], dtype_hint=tf.int32).dtype == tf.float32


def test_lists_of_tensors_and_numbers_are_stacked() -> None:
    found = tf.convert_to_tensor([[tf.constant(1.0), 2], [3, tf.Variable(4.0)]])
    np.testing.assert_array_equal(found, [[1, 2], [3, 4]])
    assert found.dtype == tf.float32


def test_variables_are_tensors_to_operations() -> None:
    v = tf.Variable([1.0, 2.0])
    assert tf.is_tensor(v)
    np.testing.assert_array_equal(tf.add(v, v), [2, 4])
    np.testing.assert_array_equal(tf.stack([v, [3.0, 4.0]]), [[1, 2], [3, 4]])


def test_python_numbers_take_the_dtype_beside_them() -> None:
    assert tf.add(tf.ones([1], tf.bfloat16), 1.0).dtype == tf.bfloat16
    assert tf.where([True], tf.ones([1], tf.float16), 0.0).dtype == tf.float16
    assert tf.maximum(1, 2).dtype == tf.int32


def test_numpy_of_arrays() -> None:
    array = tf.ones([2]).numpy()
    array += 1  # a copy of one's own
    assert array.tolist() == [2, 2]
    assert isinstance(jnp.float32(3).numpy(), np.float32)


def test_numpy_of_values_on_an_eager_tape() -> None:
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        assert y.numpy() == 9.0
    assert tape.gradient(y, x) == 6


def test_numpy_while_tracing() -> None:
    with pytest.raises(NotImplementedError, match=r"float32\[2\] is traced"):
        tf.function(lambda x: x.numpy())(tf.ones([2]))


def test_a_tensor_is_an_array_of_jax() -> None:
    assert tf.Tensor is jax.Array
    assert isinstance(jax.jit(lambda x: tf.square(x))(2.0), tf.Tensor)


def test_indexed_slices_become_dense() -> None:
    rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([3, 2]))
    np.testing.assert_array_equal(tf.convert_to_tensor(rows), [[0, 0], [2, 2], [0, 0]])
    assert rows.dtype == tf.float32
    with pytest.raises(ValueError, match="without dense_shape"):
        tf.convert_to_tensor(tf.IndexedSlices(tf.ones([1]), tf.constant([0])))


def test_shapes_are_asked_for_and_said():
    x = tf.ones([2, 3])
    assert x.get_shape().as_list() == [2, 3]
    x.set_shape([None, 3])
    with pytest.raises(ValueError, match=r"shape \(2, 3\) is not compatible with supplied shape \[3, 3\]"):
        x.set_shape([3, 3])

    @tf.function
    def f(y):
        y.set_shape([2, None])
        return y * y.get_shape()[1]

    np.testing.assert_array_equal(f(x), np.full((2, 3), 3.0))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        y.set_shape([2, 3])
    assert tape.gradient(y, x).get_shape() == (2, 3)


@pytest.mark.parametrize("text", ["a", b"a", ["a", b"b"], [["a"], ["b"]], np.array(["a", "b"])])
@pytest.mark.parametrize("create", [tf.constant, tf.convert_to_tensor])
def test_constants_of_strings_are_bytes_on_the_host(text, create):
    found = create(text)
    assert found.numpy() == b"a" if isinstance(text, str | bytes) else found.numpy().flat[0] == b"a"
    assert found.shape == np.shape(text)
    assert create(text, dtype=tf.string).shape == np.shape(text)


def test_shapes_of_constants_of_strings():
    assert tf.constant("a", shape=[2]).numpy().tolist() == [b"a", b"a"]
    assert tf.constant("a\0", shape=[2]).numpy().tolist() == [b"a\0", b"a\0"]
    assert tf.constant(["a", "b"], shape=[2, 1]).numpy().tolist() == [[b"a"], [b"b"]]
    with pytest.raises(TypeError, match="unsupported type"):
        tf.constant("a", dtype=tf.float32)
    with pytest.raises(TypeError, match="unsupported type"):
        tf.identity(tf.constant("a"))


@pytest.mark.parametrize("value", [np.int64(2**31), np.array([0, -(2**40)]), np.array([2**32], np.uint64)])
def test_integers_that_need_64_bits_do_not_wrap(value):
    for create in (tf.constant, tf.identity, tf.Variable):
        with pytest.raises(ValueError, match=r"do not fit into u?int32\n.*64-bit mode"):
            create(value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit into int32"):
        tf.constant(2**40, tf.int64)
    with jax.enable_x64(True):
        assert int(tf.constant(2**40, tf.int64)) == 2**40
    assert tf.constant(np.array([2**31 - 1, -(2**31)])).numpy().tolist() == [2**31 - 1, -(2**31)]


@pytest.mark.parametrize(
    "filled",
    [
        lambda value: tf.pad(tf.constant([1]), [[1, 0]], constant_values=value)[0],
        lambda value: tf.linalg.diag(tf.constant([1, 2]), padding_value=value)[0, 1],
    ],
    ids=["pad", "diag"],
)
def test_float_scalars_of_numpy_without_a_fraction_fill_tensors_of_integers(filled: Any) -> None:
    for value in (np.float32(0), np.float64(-1), np.float16(3), np.asarray(2.0)):
        assert int(filled(value)) == value
    for fraction in (np.float32(2.5), np.float64(2.5), np.asarray(2.5), np.float64("inf")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be integers"):
            filled(fraction)
