"""`tf.TensorArray`, in Python and in compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._errors import InvalidArgumentError, OutOfRangeError

WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])


@WRAPS
def test_rows_are_written_and_stacked(wrap):
    def rows(x):
        array = tf.TensorArray(tf.float32, size=3)
        for i in range(3):
            array = array.write(i, x * i)
        return array.stack(), array.read(2), array.gather([2, 0]), array.size()

    stacked, last, gathered, size = wrap(rows)(tf.constant([1.0, 2.0]))
    np.testing.assert_allclose(stacked, [[0, 0], [1, 2], [2, 4]])
    np.testing.assert_allclose(last, [2, 4])
    np.testing.assert_allclose(gathered, [[2, 4], [0, 0]])
    assert int(size) == 3


@WRAPS
def test_a_dynamic_one_grows(wrap):
    def rows(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in range(4):
            array = array.write(array.size(), x + i)
        return array.stack()

    np.testing.assert_allclose(wrap(rows)(tf.constant(1.0)), [1, 2, 3, 4])


def test_unstack_concat_split_and_scatter():
    array = tf.TensorArray(tf.float32, size=0).unstack(tf.reshape(tf.range(6.0), [3, 2]))
    np.testing.assert_allclose(array.read(1), [2, 3])
    np.testing.assert_allclose(array.concat(), np.arange(6.0))
    uneven = tf.TensorArray(tf.float32, size=2).split(tf.range(5.0), [2, 3])
    np.testing.assert_allclose(uneven.read(1), [2, 3, 4])
    np.testing.assert_allclose(uneven.concat(), np.arange(5.0))
    scattered = tf.TensorArray(tf.float32, size=3).scatter([2, 0], tf.constant([[1.0], [2.0]]))
    np.testing.assert_allclose(scattered.stack(), [[2], [0], [1]])


def test_rows_are_neither_dropped_nor_repeated():
    array = tf.TensorArray(tf.float32, size=3)
    for lengths in ([2, 2], [2, 4], [6, -1]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"add up to the number of rows"):
            array.split(tf.range(5.0), lengths)
    for indices in ([0], [0, 1, 2], [[0, 1]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"one index for each row"):
            array.scatter(indices, tf.ones([2, 1]))


def test_eager_writes_change_the_array():
    array = tf.TensorArray(tf.float32, size=3)
    assert array.write(0, 1.0) is array
    array.write(1, 2.0)
    array.scatter([2, 0], [3.0, 4.0])
    np.testing.assert_array_equal(array.stack(), [4, 2, 3])
    assert array.unstack([5.0, 6.0]) is array
    array.write(1, 7.0)
    np.testing.assert_array_equal(array.stack(), [5, 7])
    grown = tf.TensorArray(tf.float32, dynamic_size=True)
    grown.split(tf.range(3.0), [1, 2])
    for i in tf.range(2, 4):
        grown.write(i, [9.0])
    np.testing.assert_array_equal(grown.concat(), [0, 1, 2, 9, 9])


def test_eager_loops_change_the_array():
    array = tf.TensorArray(tf.int32, size=3)

    def body(i):
        array.write(i, 2 * i)
        return (i + 1,)

    tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
    tf.cond(tf.constant(True), lambda: array.write(0, 5), lambda: array)
    np.testing.assert_array_equal(array.stack(), [5, 2, 4])


def test_eager_writes_change_the_array_beside_a_tape():
    x, array = tf.Variable(2.0), tf.TensorArray(tf.float32, size=2)
    with tf.GradientTape() as tape:
        array.write(0, x * x)
        array.write(1, 3 * x)
        total = tf.reduce_sum(array.stack())
    assert float(tape.gradient(total, x)) == 7.0
    np.testing.assert_array_equal(array.stack(), [4, 6])


def test_a_write_in_a_function_leaves_the_old_one_as_it_was():
    old = tf.TensorArray(tf.int32, size=1, element_shape=())
    assert int(tf.function(lambda row: old.write(0, row).read(0))(7)) == 7
    assert int(old.read(0)) == 0


@pytest.mark.parametrize("method", ["write", "scatter", "unstack", "split"])
def test_a_function_that_drops_the_result_of_a_write_warns(method):
    given = {"write": (1, [2.0]), "scatter": ([1], [[2.0]]), "unstack": ([[2.0]],), "split": ([2.0], [1])}[method]

    @tf.function
    def rows(x):
        array = tf.TensorArray(tf.float32, size=3).write(0, [x])
        getattr(array, method)(*given)
        return array.stack()

    with pytest.warns(UserWarning, match=rf"Array\.{method}: .*_array.py:\d+ .*never used(.|\n)*assign"):
        np.testing.assert_array_equal(rows(tf.constant(1.0)), [[1], [0], [0]])


@pytest.mark.filterwarnings("error")
def test_results_of_writes_that_are_used_do_not_warn():
    @tf.function
    def rows(x, n):
        array = tf.TensorArray(tf.float32, size=4).write(0, x)
        for i in tf.range(1, 3):
            if x > 0:
                array = array.write(i, x)
        _, array = tf.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a.write(i, x)), (3, array))
        array.write(0, 0.0).mark_used()
        return array

    np.testing.assert_array_equal(rows(tf.constant(1.0), tf.constant(4)).stack(), [1, 1, 1, 1])


@pytest.mark.filterwarnings("error")
def test_a_function_that_ends_with_an_exception_does_not_warn():
    @tf.function
    def rows(x):
        array = tf.TensorArray(tf.float32, size=1).write(0, x)
        if not x.shape:
            raise KeyError("scalar")
        return array.stack()

    with pytest.raises(KeyError):
        rows(tf.constant(1.0))


def test_gradients_flow_through_a_loop():
    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            array = tf.TensorArray(tf.float32, size=3)
            for i in tf.range(3):
                array = array.write(i, x * tf.cast(i, tf.float32))
            loss = tf.reduce_sum(array.stack() ** 2)
        return tape.gradient(loss, x)

    assert float(slope(tf.constant(3.0))) == 2 * 3.0 * (0 + 1 + 4)


def test_a_loop_whose_end_the_program_decides():
    @tf.function
    def powers(x, limit):
        array, i, value = tf.TensorArray(tf.float32, size=8), 0, x
        while value < limit:
            array = array.write(i, value)
            value *= x
            i += 1
        return array.stack(), i

    rows, count = powers(tf.constant(2.0), tf.constant(20.0))
    np.testing.assert_allclose(rows, [2, 4, 8, 16, 0, 0, 0, 0])
    assert int(count) == 4


def test_a_dynamic_one_in_a_loop_over_rows_is_written_out():
    @tf.function
    def doubled(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(tf.shape(x)[0]):
            array = array.write(i, 2 * x[i])
        return array.stack()

    np.testing.assert_allclose(doubled(tf.constant([1.0, 2.0, 3.0])), [2, 4, 6])


def test_what_does_not_fit_is_refused():
    array = tf.TensorArray(tf.float32, size=2)
    with pytest.raises(OutOfRangeError, match=r"row 2 was written in a TensorArray of size 2(.|\n)*dynamic_size=True"):
        array.write(2, 1.0)
    with pytest.raises(OutOfRangeError, match=r"row -1 was written(.|\n)*an index that counts from 0"):
        array.write(-1, 1.0)
    with pytest.raises(OutOfRangeError, match="row 5 was read from a TensorArray of size 2"):
        array.read(5)
    with pytest.raises(InvalidArgumentError, match="the row has dtype int32, the TensorArray float32"):
        array.write(0, tf.constant(1))
    with pytest.raises(InvalidArgumentError, match="no row was ever written"):
        array.stack()


@WRAPS
@pytest.mark.parametrize("element_shape", [None, ()])
def test_while_loop_carries_one(wrap, element_shape):
    def squares(n):
        array = tf.TensorArray(tf.float32, size=5, element_shape=element_shape)
        _, array = tf.while_loop(
            lambda i, array: i < n,
            lambda i, array: (i + 1, array.write(i, tf.cast(i, tf.float32) ** 2)),
            [tf.constant(0), array],
        )
        return array.stack()

    np.testing.assert_allclose(wrap(squares)(tf.constant(5)), [0, 1, 4, 9, 16])


@WRAPS
def test_while_loop_with_one_has_gradients(wrap):
    def powers(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loop_vars = (0, x, {"rows": tf.TensorArray(tf.float32, size=3)})
            _, _, state = tf.while_loop(
                lambda i, power, state: i < 3,
                lambda i, power, state: (i + 1, power * x, {"rows": state["rows"].write(i, power)}),
                loop_vars,
                maximum_iterations=3,
            )
            total = tf.reduce_sum(state["rows"].stack())
        return total, tape.gradient(total, x)

    total, gradient = wrap(powers)(tf.constant([2.0]))
    assert (float(total), float(gradient[0])) == (14.0, 17.0)


@pytest.mark.parametrize("bad", [-1, 3])
def test_indices_out_of_range(bad):
    """Traced, they read zeros, and a row written there is dropped."""
    array = tf.TensorArray(tf.float32, 3).unstack([1.0, 2.0, 3.0])
    with pytest.raises(tf.errors.OutOfRangeError, match=f"row {bad} was read"):
        array.read(bad)
    with pytest.raises(tf.errors.OutOfRangeError, match=rf"indices\[1\] = {bad} is not in \[0, 3\)"):
        array.gather([0, bad])
    read = tf.function(lambda index: array.write(index, 9.0).stack() + array.read(index))
    np.testing.assert_array_equal(read(tf.constant(bad)), [1, 2, 3])
    gathered = tf.function(lambda indices: array.gather(indices))(tf.constant([0, bad]))
    np.testing.assert_array_equal(gathered, [1, 0])


def test_a_dynamic_one_grows_in_while_loops_of_known_length():
    @tf.function
    def statement(x):
        array, i = tf.TensorArray(tf.float32, size=1, dynamic_size=True), tf.constant(0)
        while i < 4:
            array = array.write(i, x + tf.cast(i, tf.float32))
            i += 1
        return array.stack(), i

    @tf.function
    def function(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        i, array = tf.while_loop(
            lambda i, array: i < 4,
            lambda i, array: (i + 1, array.write(i, x + tf.cast(i, tf.float32))),
            (tf.constant(0), array),
        )
        return array.stack(), i

    for grown in (statement, function):
        rows, count = grown(tf.constant(1.0))
        np.testing.assert_array_equal(rows, [1, 2, 3, 4])
        assert int(count) == 4


def test_a_dynamic_one_in_nested_loops():
    @tf.function
    def products(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(2):
            for j in tf.range(3):
                array = array.write(3 * i + j, x * tf.cast(i * j, tf.float32))
        return array.stack()

    np.testing.assert_array_equal(products(tf.constant(2.0)), [0, 0, 0, 0, 2, 4])


def test_a_dynamic_one_skips_rows_with_continue():
    @tf.function
    def odd(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(6):
            if i % 2 == 0:
                continue
            array = array.write(array.size(), x * tf.cast(i, tf.float32))
        return array.stack()

    np.testing.assert_array_equal(odd(tf.constant(2.0)), [2, 6, 10])


def test_no_row_of_a_dynamic_one_is_lost():
    """A row at a traced index after the last one was dropped."""
    array = tf.TensorArray(tf.float32, size=2, dynamic_size=True, element_shape=())
    with pytest.raises(InvalidArgumentError, match=r"dynamic_size=True(.|\n)*replace dynamic_size=True by size=N"):
        tf.function(lambda place: array.write(place, 1.0).stack())(tf.constant(5))


@pytest.mark.parametrize("statement", ["break", "if", "cond"])
def test_a_dynamic_one_that_grows_on_one_path_is_refused(statement):
    @tf.function
    def rows(x):
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        if statement == "break":
            for i in tf.range(3):
                array = array.write(i, x)
                if x > 1.0:
                    break
        elif statement == "if":
            if x > 1.0:
                array = array.write(0, x)
        else:
            array = tf.cond(x > 1.0, lambda: array.write(0, x), lambda: array)
        return array.stack()

    with pytest.raises(InvalidArgumentError, match=r"rows on one path and(.|\n)*replace dynamic_size=True by size=N"):
        rows(tf.constant(1.0))


@pytest.mark.long
@pytest.mark.parametrize("statement", ["while", "for", "while_loop"])
def test_a_dynamic_one_in_a_loop_of_unknown_length_is_refused(statement):
    @tf.function
    def rows(x, limit):
        array, i = tf.TensorArray(tf.float32, size=0, dynamic_size=True), tf.constant(0)
        if statement == "while":
            while i < limit:
                array, i = array.write(i, x), i + 1
        elif statement == "for":
            for j in tf.range(limit):
                array = array.write(j, x)
        else:
            _, array = tf.while_loop(lambda i, _: i < limit, lambda i, a: (i + 1, a.write(i, x)), (i, array))
        return array.stack()

    with pytest.raises(InvalidArgumentError, match=r"number of iterations(.|\n)*by size=N"):
        rows(tf.constant(1.0), tf.constant(3))


@pytest.mark.parametrize(
    "write",
    [
        lambda array, i: array.write(1, tf.constant([9.0])),
        lambda array, i: array.write(1, 9.0),
        lambda array, i: array.scatter([0, 1], tf.constant([[7.0], [8.0]])),
        lambda array, i: tf.TensorArray(tf.float32, size=2).write(0, 5.0).write(i, tf.ones([3])),
    ],
)
def test_a_row_is_not_broadcast_to_the_shape_of_the_others(write):
    function = tf.function(lambda i: write(tf.TensorArray(tf.float32, size=3).unstack(tf.ones([3, 2])), i).stack())
    with pytest.raises(tf.errors.InvalidArgumentError, match="among rows of shape"):
        function(tf.constant(1))
