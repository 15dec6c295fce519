"""Operators of tensors and variables take Python lists and tuples, which get the dtype of the tensor, on both sides."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.integrations import disconnect

LEFT = [[1.0, 2.0], [3.0, 5.0]]
RIGHT = [[2.0, 4.0], [1.0, 5.0]]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
ARITHMETIC += [operator.pow, operator.matmul]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
LOGICAL = [operator.and_, operator.or_, operator.xor]


def _eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _in_run(function: Callable[..., Any]) -> Callable[..., Any]:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def run(*args: Any) -> Any:
        return strategy.experimental_local_results(strategy.run(function, args))[1]

    return run


def _under_a_tape(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with tf.GradientTape() as tape:
            for one in args:
                tape.watch(one)
            return function(*args)

    return run


WAYS = {
    "eager": _eager,
    "compiled": tf.function,
    "in run": _in_run,
    "in a compiled run": lambda function: tf.function(_in_run(function)),
    "under a tape": _under_a_tape,
    "in tf.vectorized_map": lambda function: lambda x: tf.vectorized_map(function, x[None])[0],
}


def _same(found: Any, expected: Any) -> None:
    assert tf.is_tensor(found)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.first(1)
def test_operators_of_tensors(where: str, kind: type) -> None:
    x, y = np.array(LEFT, np.float32), np.array(RIGHT, np.float32)
    for one in (*ARITHMETIC, *COMPARISONS):
        _same(WAYS[where](lambda t, one=one: one(t, kind(RIGHT)))(tf.constant(LEFT)), one(x, y))
        _same(WAYS[where](lambda t, one=one: one(kind(LEFT), t))(tf.constant(RIGHT)), one(x, y))


@pytest.mark.parametrize("one", LOGICAL)
def test_operators_of_booleans(one: Callable[[Any, Any], Any]) -> None:
    _same(one(tf.constant([True, False]), [True, True]), one(np.array([True, False]), True))
    _same(one([True, True], tf.constant([True, False])), one(np.array([True, False]), True))


@pytest.mark.parametrize("one", [*ARITHMETIC, *COMPARISONS])
def test_operators_of_variables(one: Callable[[Any, Any], Any]) -> None:
    x, y = np.array(LEFT, np.float32), np.array(RIGHT, np.float32)
    _same(one(tf.Variable(LEFT), RIGHT), one(x, y))
    _same(one(LEFT, tf.Variable(RIGHT)), one(x, y))
    _same(one(tf.Variable(LEFT), tuple(RIGHT)), one(x, y))


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [tf.constant, tf.Variable])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float32])
def test_a_list_takes_the_dtype_of_the_tensor(make: Callable[..., Any], dtype: tf.DType) -> None:
    x = make([1.0, 2.0], dtype=dtype)
    for found in (x - [0.5, 0.25], [0.5, 0.25] - x, x * [1, 2], tf.add(x, [0.5, 1]), tf.concat([[0.5], x], 0)):
        assert found.dtype == dtype
    assert tf.stack([x, [0.5, 0.5]]).dtype == tf.convert_to_tensor([x, [0.5, 0.5]]).dtype == dtype
    assert tf.where([True, False], x, [0.5, 0.5]).dtype == dtype


def test_in_place_operators_rebind() -> None:
    x = y = tf.constant([1.0, 2.0])
    x -= [0.5, 0.25]
    _same(x, np.array([0.5, 1.75], np.float32))
    _same(y, np.array([1, 2], np.float32))
    listed: Any = [1.0, 2.0]
    listed += tf.constant([1.0, 2.0])
    _same(listed, np.array([2, 4], np.float32))


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled: bool) -> None:
    def gradients(x: tf.Tensor, v: tf.Variable) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            part = [3.0, 5.0] * (x - [0.5, 0.25]) / v
            loss = tf.reduce_sum(part @ [[1.0], [2.0]] * [x[0, 0], 1.0])
        return tape.gradient(loss, [x, v])

    v = tf.Variable([1.0, 2.0])
    found = (tf.function(gradients) if compiled else gradients)(tf.constant([[1.5, 1.25]]), v)
    # loss = (3 (a - .5) / v + 10 (b - .25) / w) (a + 1)
    np.testing.assert_allclose(found[0], [[3 * 2.5 + 3 + 5, 5 * 2.5]])
    np.testing.assert_allclose(found[1], [-3 * 2.5, -2.5 * 2.5])


def test_lists_of_tensors_and_shapes() -> None:
    x = tf.constant([1, 2])
    _same(x + [x[0], 5], np.array([2, 7], np.int32))
    _same(x + tf.Variable([[1.0, 2.0, 3.0]] * 2).shape, np.array([3, 5], np.int32))
    _same(x * tf.zeros([2, 3]).shape, np.array([2, 6], np.int32))


def test_components_of_per_replica_values() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([1.0, 2.0]) * float(context.replica_id_in_sync_group)
    )
    found = strategy.run(lambda x: x - [0.5, 0.25], (values,))
    assert [one.tolist() for one in strategy.experimental_local_results(found)] == [[-0.5, -0.25], [0.5, 1.75]]
    with pytest.raises(TypeError, match="per-replica"):
        values - [0.5, 0.25]


def test_a_list_with_other_values_is_refused() -> None:
    with pytest.raises(TypeError, match="unsupported type"):
        tf.ones([2]) + ["a", "b"]
    with pytest.raises(TypeError, match="incompatible shapes"):
        tf.ones([2]) == [1, 2, 3]  # noqa: B015


def test_numbers_and_tensors_in_a_list_have_a_common_dtype() -> None:
    _same(tf.convert_to_tensor([tf.constant(1), 0.5]), np.array([1, 0.5], np.float32))


def test_functions_of_datasets() -> None:
    dataset = tf.data.Dataset.from_tensors(np.array([1, 2], np.float32)).map(
        lambda x: (x - [0.5, 0.25], [2, 4] * x, x == [1, 3])
    )
    assert [spec.dtype for spec in dataset.element_spec] == [tf.float32, tf.float32, tf.bool]
    assert [part.tolist() for part in next(iter(dataset))] == [[0.5, 1.75], [2, 8], [True, False]]


@pytest.fixture
def without_the_facade() -> Iterator[None]:
    disconnect("jax")
    yield
    from mirrored.tf._tensors import add_methods

    add_methods()


@pytest.mark.usefixtures("without_the_facade")
def test_the_arrays_of_jax_refuse_lists_without_the_facade() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        jax.numpy.ones(2) + [1, 2]
    with tf.GradientTape() as tape:
        tape.watch(x := jax.numpy.ones(2))
        y = x * 2.0
        with pytest.raises(TypeError, match="unsupported operand"):
            y + [1, 2]


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_list_with_a_tensor_is_assigned(method: str, compiled: bool) -> None:
    expected = {"assign": [3.0, 1.0], "assign_add": [4.0, 3.0], "assign_sub": [-2.0, 1.0]}[method]
    v = tf.Variable([1.0, 2.0])

    def replace(a: jax.Array) -> jax.Array:
        getattr(v, method)([a, 1.0])
        return v + 0.0

    assert (tf.function(replace) if compiled else replace)(tf.constant(3.0)).tolist() == expected
