"""Functions over rows, loops and branches that assign variables; values and gradients are those of TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import MergeError, TransformError

X = jnp.array([1.0, 2.0, 3.0])
Body = Callable[[Any, Any], Any]


def add(v: Any, row: Any) -> Any:
    v.assign_add(row)
    return v * 1.0


def multiply(v: Any, row: Any) -> Any:
    v.assign(v * row)
    return v * row


# The result, and the value of the variable afterwards, which is 10 at first.
ROWS: dict[str, tuple[Body, Any, float]] = {
    "map_fn": (lambda v, x: tf.map_fn(lambda e: add(v, e), x), [11, 13, 16], 16),
    "map_fn, assigned value": (lambda v, x: tf.map_fn(lambda e: v.assign_add(e), x), [11, 13, 16], 16),
    "map_fn, read after": (lambda v, x: tf.map_fn(lambda e: add(v, e), x) + v, [27, 29, 32], 16),
    "map_fn, branch": (
        lambda v, x: tf.map_fn(lambda e: tf.cond(e > 1.5, lambda: v.assign_add(e), v.read_value), x),
        [10, 12, 15],
        15,
    ),
    "map_fn, nested": (
        lambda v, x: tf.map_fn(lambda row: tf.map_fn(lambda e: add(v, e), row), tf.stack([x, x])),
        [[11, 13, 16], [17, 19, 22]],
        22,
    ),
    "map_fn, no rows": (lambda v, x: tf.map_fn(lambda e: add(v, e), x[:0]), [], 10),
    "foldl": (lambda v, x: tf.foldl(lambda a, e: a + add(v, e), x), 28, 15),
    "foldl, initializer": (lambda v, x: tf.foldl(lambda a, e: a + add(v, e), x, initializer=0.0), 40, 16),
    "foldr": (lambda v, x: tf.foldr(lambda a, e: a * 2 + add(v, e), x), 49, 13),
    "scan": (lambda v, x: tf.scan(lambda a, e: a + add(v, e), x), [1, 13, 28], 15),
    "scan, initializer": (lambda v, x: tf.scan(lambda a, e: a + add(v, e), x, initializer=0.0), [11, 24, 40], 16),
    "scan, reverse": (lambda v, x: tf.scan(lambda a, e: a + add(v, e), x, reverse=True), [28, 15, 3], 13),
}


@pytest.mark.first(12)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("body", "expected", "after"), ROWS.values(), ids=ROWS)
def test_a_function_over_rows_assigns_row_by_row(body: Body, expected: Any, after: float, compiled: bool) -> None:
    v = tf.Variable(10.0)
    run = tf.function(lambda x: body(v, x)) if compiled else lambda x: body(v, x)
    np.testing.assert_array_equal(run(X), expected)
    assert float(v) == after


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_in_replicas(replicas: int) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"][: min(2, replicas)], num_replicas=replicas)
    with strategy.scope():
        v = tf.Variable(10.0, aggregation=tf.VariableAggregation.MEAN)
        own = tf.Variable(10.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation="SUM")

    def replica() -> Any:
        return tf.map_fn(lambda e: own.assign_add(e * v), X)

    results = strategy.experimental_local_results(tf.function(lambda: strategy.run(replica))())
    assert [one.tolist() for one in results] == [[20.0, 40.0, 70.0]] * replicas
    assert float(own.read_value()) == 70.0 * replicas


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_an_aggregated_assignment_in_a_branch_needs_one_replica_per_device(replicas: int) -> None:
    devices = min(2, replicas)
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"][:devices], num_replicas=replicas)
    with strategy.scope():
        v = tf.Variable(10.0, aggregation=tf.VariableAggregation.MEAN)

    def replica(x: Any) -> Any:
        return tf.cond(x[0] > 0.0, lambda: v.assign(v * x[1]), v.read_value)

    step = tf.function(lambda x: strategy.run(replica, args=(x,)))
    if replicas == devices:
        step(X)
        assert float(v) == 20.0
    else:
        with pytest.raises(MergeError, match="called under a JAX transform inside the replica function"):
            step(X)
        assert float(v) == 10.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_over_no_rows(reverse: bool, compiled: bool) -> None:
    wrap = tf.function if compiled else lambda function: function
    start = (jnp.zeros(3), jnp.array([1, 2]))
    rows = jnp.zeros((0, 3))
    first, second = wrap(lambda: tf.scan(lambda a, r: (a[0] + r, a[1]), rows, initializer=start, reverse=reverse))()
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((0, 3), jnp.float32, (0, 2), jnp.int32)
    kind = tf.errors.InvalidArgumentError if compiled else tf.errors.OutOfRangeError
    for fold in (tf.scan, tf.foldl, tf.foldr):
        with pytest.raises(kind, match="`elems` has no rows"):
            wrap(lambda fold=fold: fold(lambda a, r: a + r, rows))()


# Loops over one structure: loop variables, condition, body, and the final loop variables. As in TensorFlow, the items
# of a list or tuple that the body returns are the loop variables, and the type of the outermost sequence is free.
C = jnp.zeros(())
STRUCTURES: dict[str, tuple[Any, Any, Any, Any]] = {
    "dict": ([{"a": C, "b": C}], lambda d: d["a"] < 3, lambda d: [{"a": d["a"] + 1, "b": d["b"] + 2}], [3, 6]),
    "dict, tuple": ([{"a": C}], lambda d: d["a"] < 3, lambda d: ({"a": d["a"] + 1},), [3]),
    "tuple": ([(C, C)], lambda t: t[0] < 3, lambda t: [(t[0] + 1, t[1] + 2)], [3, 6]),
    "tuple of a tuple": (((C, C),), lambda t: t[0] < 3, lambda t: ((t[0] + 1, t[1] + 2),), [3, 6]),
    "tuple of one": ([(C,)], lambda t: t[0] < 3, lambda t: [(t[0] + 1,)], [3]),
    "list of one": ([[C]], lambda t: t[0] < 3, lambda t: [[t[0] + 1]], [3]),
    "nested": ([{"a": (C, [C])}], lambda d: d["a"][0] < 3, lambda d: [{"a": (d["a"][0] + 1, [d["a"][1][0]])}], [3, 0]),
    "tensor": ([C], lambda t: t < 3, lambda t: t + 1, [3]),
    "two": ((C, (C, C)), lambda i, d: i < 3, lambda i, d: [i + 1, [d[0] + 1, d[1]]], [3, 3, 0]),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("start", "test", "body", "expected"), STRUCTURES.values(), ids=STRUCTURES)
@pytest.mark.first(9)
def test_a_loop_over_a_structure(start: Any, test: Any, body: Any, expected: list[float], compiled: bool) -> None:
    for limit in (None, 10):

        def run(limit: int | None = limit) -> Any:
            return tf.while_loop(test, body, start, maximum_iterations=limit)

        found = (tf.function(run) if compiled else run)()
        tf.nest.assert_same_structure(start, found)
        assert [float(one) for one in tf.nest.flatten(found)] == expected


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("start", "body"),
    [
        ([(C, C)], lambda t: (t[0] + 1, t[1] + 1)),
        ([(C,)], lambda t: (t[0] + 1,)),
        ([(C,)], lambda t: t[0] + 1),
        ([[C]], lambda t: [t[0] + 1]),
        ((C, (C, C)), lambda i, d: (i + 1, d[0], d[1])),
        ((C, {"a": C}), lambda i, d: (i + 1, d["a"])),
        ((C, C), lambda i, j: i + 1),
    ],
)
def test_a_loop_whose_body_returns_another_structure_is_an_error(start: Any, body: Any, compiled: bool) -> None:
    def run() -> Any:
        return tf.while_loop(lambda *state: tf.nest.flatten(state)[0] < 3, body, start)

    with pytest.raises(tf.errors.InvalidArgumentError, match="one value per loop variable"):
        (tf.function(run) if compiled else run)()


def test_vectorized_map_does_not_assign_while_tracing() -> None:
    v = tf.Variable(10.0)
    with pytest.raises(TransformError, match="assigned under a JAX transform"):
        tf.function(lambda: tf.vectorized_map(lambda e: add(v, e), X))()
    assert float(v) == 10.0


def test_vectorized_map_draws_for_each_row() -> None:
    """Under a tape and in `tf.function`, a draw was refused as an assignment under a JAX transform."""

    def drawn(x: Any) -> Any:
        return tf.vectorized_map(lambda row: row * tf.random.uniform([], 1.0, 2.0), x)

    def sloped(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = drawn(x)
        return tape.gradient(y, x)

    compiled = tf.function(drawn)
    for found in (drawn(X) / X, sloped(X), compiled(X) / X, compiled(X) / X, tf.function(sloped)(X)):
        assert len(set(found.tolist())) == 3
        assert ((found >= 1) & (found < 2)).all()


def test_vectorized_map_that_draws_does_not_assign_while_tracing() -> None:
    v = tf.Variable(10.0)
    with pytest.raises(TransformError, match="assigned under a JAX transform"):
        tf.function(lambda: tf.vectorized_map(lambda e: add(v, e + tf.random.uniform([])), X))()
    assert float(v) == 10.0


# Gradients: the sum over the reads, as if each were of another variable. An assigned value has no derivative.
# The result, the gradient, and the value of the variable afterwards.
GRADIENTS: dict[str, tuple[Body, float, float, float]] = {
    "map_fn": (lambda v, x: tf.reduce_sum(tf.map_fn(lambda e: multiply(v, e), x)), 230, 6, 60),
    "foldl": (lambda v, x: tf.foldl(lambda a, e: a * multiply(v, e), x, initializer=1.0), 72000, 12000, 60),
    "scan": (lambda v, x: tf.reduce_sum(tf.scan(lambda a, e: a + multiply(v, e), x, initializer=0.0)), 290, 10, 60),
    "while": (
        lambda v, x: tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + multiply(v, x[1])), (0, 0.0 * x[0]))[1],
        280,
        6,
        80,
    ),
    "cond": (lambda v, x: tf.cond(x[0] > 0.0, lambda: multiply(v, x[1]), lambda: v * 1.0), 40, 2, 20),
    "cond, assigned value": (
        lambda v, x: tf.cond(x[0] > 0.0, lambda: v.assign(v * 2.0), v.read_value) * 5.0,
        100,
        5,
        20,
    ),
    "cond, read before": (
        lambda v, x: tf.cond(x[0] > 0.0, lambda: v * v.assign(v * 2.0), lambda: v * 1.0),
        400,
        40,
        20,
    ),
    "nested": (
        lambda v, x: tf.reduce_sum(
            tf.map_fn(lambda e: tf.cond(e > 1.5, lambda: multiply(v, e), lambda: v * e), x),
        ),
        230,
        6,
        60,
    ),
}
FORMS = ("eager", "tape inside", "tape around")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", [None, (1, 1), (1, 2), (2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("body", "value", "gradient", "after"), GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.first(1)
def test_gradients_do_not_flow_through_assignments(
    body: Body, value: float, gradient: float, after: float, form: str, layout: Any
) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(layout[0])], num_replicas=layout[1]) if layout else None
    if strategy is None:
        v = tf.Variable(10.0)
    else:
        with strategy.scope():
            v = tf.Variable(10.0)

    def work(x: Any) -> Any:
        return body(v, x) if strategy is None else strategy.reduce("MEAN", strategy.run(body, args=(v, x)), axis=None)

    forward = tf.function(work) if form == "tape around" else work

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = forward(x)
        return y, tape.gradient(y, v)

    found = (tf.function(step) if form == "tape inside" else step)(X)
    assert [float(one) for one in (*found, v)] == [value, gradient, after]
