"""`jax.checking_leaks` reports no tracer of the control flow of `mirrored.tf`."""

import jax
import numpy as np
import pytest

import mirrored.tf as tf

w = tf.Variable(1.5, name="w")


class Holder:
    """An object with an attribute."""

    value = 0.0


def cond(x):
    tf.cond(x > 1, lambda: w.assign_add(1.0), lambda: w.assign(0.0))
    return w * x


def switch_case(x):
    return tf.switch_case(tf.cast(x, tf.int32), [lambda: x * w, lambda: x + 1.0])


def array_in_a_cond(x):
    array = tf.TensorArray(tf.float32, size=2)
    return tf.cond(x > 1, lambda: array.write(0, x * w), lambda: array.write(0, x)).read(0)


def while_loop(x):
    def body(i, y):
        w.assign(w * 2.0)
        return i + 1, y * w

    return tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])[1]


def array_in_a_while_loop(x):
    start = [tf.constant(0), tf.TensorArray(tf.float32, size=3)]
    return tf.while_loop(lambda i, _: i < 3, lambda i, array: (i + 1, array.write(i, x * w)), start)[1].stack()


def map_fn(x):
    return tf.map_fn(lambda row: row * w, tf.stack([x, x]))


def scan(x):
    return tf.scan(lambda before, row: before * w + row, tf.stack([x, x]))


def if_statement(x):
    y = 0.0
    if x > 1:
        if x > 2:
            y = x * w
        w.assign_add(1.0)
    else:
        y = x + 1
    return y


def early_return(x):
    if x > 1:
        return x * w
    return x


def conditional_expression(x):
    return x * w if x > 1 else x


def boolean_operators(x):
    if (x > 1 and w > 0) or x < 0:
        return x * 2
    return x


def while_statement(x):
    while x < 10:
        x = x * w
        if x > 5:
            break
    return x


def for_statement(x):
    for i in tf.range(tf.cast(x, tf.int32)):
        x += tf.cast(i, tf.float32) * w
        w.assign_add(1.0)
    return x


def rows(x):
    sum_ = 0.0
    for row in tf.stack([x, x, x]):
        sum_ += row * w
    return sum_


def array_in_a_loop(x):
    array = tf.TensorArray(tf.float32, size=3)
    for i in tf.range(3):
        array = array.write(i, x * w)
    return array.stack()


def items_and_attributes(x):
    holder, items = Holder(), [x, x]
    holder.value = x
    if x > 1:
        holder.value = x * w
        items[0] = x + 1
    while items[1] < 10:
        items[1] = items[1] * w
    return holder.value + items[0] + items[1]


def gradient(x):
    with tf.GradientTape() as tape:
        y = x * w if x > 1 else x
        for _ in tf.range(3):
            y = y * w
    return tape.gradient(y, w)


FUNCTIONS = (
    cond,
    switch_case,
    array_in_a_cond,
    while_loop,
    array_in_a_while_loop,
    map_fn,
    scan,
    if_statement,
    early_return,
    conditional_expression,
    boolean_operators,
    while_statement,
    for_statement,
    rows,
    array_in_a_loop,
    items_and_attributes,
    gradient,
)


@pytest.mark.sampled(3)
@pytest.mark.first(1)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_leak(function):
    w.assign(1.5)
    expected = tf.function(function)(tf.constant(3.0))
    w.assign(1.5)
    with jax.checking_leaks():
        result = tf.function(function)(tf.constant(3.0))
    np.testing.assert_allclose(result, expected, rtol=1e-6)
