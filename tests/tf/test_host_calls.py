"""`tf.py_function` and `tf.numpy_function`."""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.tf._data import host_gradients

SCALAR = jax.ShapeDtypeStruct((), np.float32)
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])


@WRAPS
def test_python_runs_each_time(wrap):
    calls = []

    def plus(x, y):
        calls.append(float(x))
        return x + y

    wrapped = wrap(lambda x, y: tf.py_function(plus, [x, y], tf.float32))
    for start in (1.0, 2.0):
        assert float(wrapped(tf.constant(start), tf.constant(2.0))) == start + 2
    jax.effects_barrier()
    assert [one for one in calls if one] == [1.0, 2.0]


@WRAPS
def test_arrays_of_numpy_and_several_results(wrap):
    def both(x):
        assert isinstance(x, np.ndarray)
        return np.sort(x), np.argsort(x).astype(np.int32)

    values, places = wrap(lambda x: tf.numpy_function(both, [x], [tf.float32, tf.int32]))(tf.constant([3.0, 1.0]))
    np.testing.assert_allclose(values, [1.0, 3.0])
    np.testing.assert_array_equal(places, [1, 0])


def test_as_a_decorator():
    @tf.py_function(Tout=tf.float32)
    def half(x):
        return x.numpy() / 2

    assert float(tf.function(lambda x: half(x))(tf.constant(3.0))) == 1.5


def test_no_result():
    seen = []
    assert tf.py_function(seen.append, [tf.constant(1.0)], []) == []
    assert tf.py_function(seen.append, [tf.constant(2.0)], None) is None
    assert [float(one) for one in seen] == [1.0, 2.0]


@WRAPS
@pytest.mark.parametrize("kind", [tf.float32, tf.TensorSpec([3], tf.float32)], ids=["dtype", "spec"])
def test_a_gradient_is_that_of_the_call_itself(wrap, kind):
    rng, scales = np.random.default_rng(0), []

    def scaled(x, count):
        scales.append(rng.uniform(1, 2, 3).astype(np.float32))
        return x**2 * scales[-1] * tf.cast(count, tf.float32)

    @wrap
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.py_function(scaled, [x, tf.constant(2)], kind)
        return y, tape.gradient(y, x)

    x = tf.constant([1.0, 2.0, 3.0])
    for _ in range(3):
        y, gradient = step(x)
        jax.block_until_ready(gradient)
        np.testing.assert_allclose(y, 2 * x**2 * scales[-1], rtol=1e-6)
        np.testing.assert_allclose(gradient, 4 * x * scales[-1], rtol=1e-6)


@WRAPS
def test_a_result_without_a_connection_and_one_of_integers(wrap):
    @wrap
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, places = tf.py_function(
                lambda x, z: (3.0 * z, tf.argsort(x)),
                [x, x + 1.0],
                [tf.TensorSpec([2], tf.float32), tf.TensorSpec([2], tf.int32)],
            )
            loss = tf.reduce_sum(y * tf.cast(places + 1, tf.float32))
        return tape.gradient(loss, x)

    np.testing.assert_allclose(step(tf.constant([5.0, 4.0])), [6.0, 3.0])


@WRAPS
def test_numpy_functions_have_no_gradient(wrap):
    @wrap
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.numpy_function(np.sin, [x], tf.TensorSpec([], tf.float32))
        return tape.gradient(y, x)

    assert step(tf.constant(3.0)) is None


@pytest.mark.parametrize("devices", [["CPU:0", "CPU:1"], ["CPU:0"]], ids=["2 devices", "2 replicas on one"])
def test_a_gradient_through_calls_in_a_loop_of_each_replica(devices):
    strategy = mr.MirroredStrategy(devices, num_replicas=2)
    with strategy.scope():
        w = tf.Variable([1.0, 2.0])

    def replica_step(x):
        with tf.GradientTape() as tape:
            y = w * x
            for _ in tf.range(3):
                y = tf.py_function(tf.sin, [y], tf.TensorSpec([2], tf.float32))
        return tape.gradient(y, w)

    @tf.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    def chain(w, x):
        return jax.numpy.sin(jax.numpy.sin(jax.numpy.sin(w * x))).sum()

    parts = [np.float32([0.5, 0.25]), np.float32([1.5, -1.0])]
    x = strategy.experimental_distribute_values_from_function(lambda context: parts[context.replica_id_in_sync_group])
    expected = sum(jax.grad(chain)(np.float32([1.0, 2.0]), part) for part in parts)
    np.testing.assert_allclose(step(x), expected, rtol=1e-6)


def test_a_gradient_is_taken_once():
    @tf.function
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.py_function(lambda x: x**2, [x], tf.TensorSpec([], tf.float32))
            z = y * 2.0
        return tape.gradient(y, x), tape.gradient(z, x)

    with pytest.raises(Exception, match="a gradient is taken once"):
        jax.block_until_ready(step(tf.constant(3.0)))


def test_tapes_of_gradients_that_are_not_taken_are_dropped(monkeypatch):
    monkeypatch.setattr(host_gradients, "_MAX_KEPT", 3)
    kept = host_gradients._tapes._kept
    call = host_gradients.differentiable_call(lambda x: [x], [SCALAR], [SCALAR], "f")
    for _ in range(5):
        jax.block_until_ready(jax.vjp(lambda x: call(x), np.float32(1.0))[0])
    jax.effects_barrier()
    assert len(kept) == 3
    kept.clear()


@pytest.mark.parametrize("inputs", [[], [tf.constant(1.0)]], ids=["nothing", "a constant"])
@pytest.mark.parametrize("call", [tf.py_function, tf.numpy_function])
def test_calls_without_traced_arguments_happen_each_time(call, inputs):
    calls = []

    def number(*given):
        assert [float(one) for one in given] == [float(one) for one in inputs]  # also while tracing
        calls.append(len(calls))
        return np.float32(calls[-1])

    @tf.function
    def f(x):
        total = x
        for _ in tf.range(2):
            total = total + call(number, inputs, tf.float32)
        return total

    f(tf.constant(0.0)).block_until_ready()
    start = len(calls)
    assert float(f(tf.constant(0.0))) == 2 * start + 1  # the next two numbers


def test_integers_that_fit_become_unsigned():
    image = tf.constant(np.array([10, 200], np.uint8))
    one = tf.py_function(lambda x: 5, [image], tf.uint8)
    assert (np.asarray(one).tolist(), one.dtype) == (5, np.uint8)
    several = tf.numpy_function(lambda x: x.astype(np.int32) // 2, [image], tf.uint8)
    assert np.asarray(several).tolist() == [5, 100]


def _if(n):
    if n > 2:
        return tf.constant(1)
    return tf.constant(2)


def _for(n):
    total = tf.constant(0)
    for _ in tf.range(n):
        total += 1
    return total


def _while(n):
    total = tf.constant(0)
    while total < n:
        total += 1
    return total


def _written(n):
    rows = tf.TensorArray(tf.int32, size=6, element_shape=[])
    for place in range(6):
        rows = rows.write(place, place)
    return rows.write(n, -1).stack()


# What a function makes of a number that the host returns: its results for 1 and for 4.
DECIDED = {
    "if": (_if, 2, 1),
    "cond": (lambda n: tf.cond(n > 2, lambda: tf.constant(1), lambda: tf.constant(2)), 2, 1),
    "switch_case": (lambda n: tf.switch_case(n, [lambda i=i: tf.constant(i * i) for i in range(5)]), 1, 16),
    "for": (_for, 1, 4),
    "while": (_while, 1, 4),
    "while_loop": (lambda n: tf.while_loop(lambda i: i < n, lambda i: (i + 1,), [tf.constant(0)])[0], 1, 4),
    "TensorArray.write": (_written, [0, -1, 2, 3, 4, 5], [0, 1, 2, 3, -1, 5]),
}


@pytest.mark.parametrize("inputs", [[], [tf.constant(1)]], ids=["no input", "constant"])
@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
@pytest.mark.parametrize(("decided", "first", "second"), DECIDED.values(), ids=DECIDED)
@pytest.mark.first(7)
def test_control_flow_follows_what_the_host_returns(decided, first, second, call, inputs):
    """The host function's answer while the program was traced became a constant of the program, silently."""
    number = {"n": 0}
    run = tf.function(lambda: decided(call(lambda *_: np.int32(number["n"]), inputs, tf.int32)))
    for number["n"], expected in ((1, first), (4, second), (1, first)):
        np.testing.assert_array_equal(run(), expected)


def test_what_the_host_returns_is_no_shape():
    with pytest.raises(tf.errors.InvalidArgumentError, match="tf.zeros: `shape` depends on a traced value"):
        tf.function(lambda: tf.zeros([tf.numpy_function(lambda: np.int32(2), [], tf.int32)]))()


def test_a_loop_before_a_condition_calls_the_host_once_per_iteration():
    calls = []

    def note(n):
        calls.append(int(n))
        return n

    @tf.function
    def run():
        total = tf.constant(0)
        for i in tf.range(3):
            total += tf.numpy_function(note, [i + 1], tf.int32)
        return total * 10 if total > 2 else total

    assert int(run()) == 60
    calls.clear()
    assert int(run()) == 60
    assert calls == [1, 2, 3]


@WRAPS
@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
@pytest.mark.parametrize(
    ("result", "kind", "found"),
    [
        ((1, 2), [tf.int32], "returned a tuple of 2; Tout has 1"),
        ([1, 2], tf.int32, "returned a list of 2; Tout has 1"),
        (1, [tf.int32, tf.int32], "returned one value; Tout has 2"),
    ],
)
def test_a_function_returns_as_many_values_as_declared(wrap, call, result, kind, found):
    with pytest.raises(tf.errors.InvalidArgumentError, match=found):
        wrap(lambda x: call(lambda _: result, [x], kind))(tf.constant(1.0))


SPECS = [tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32)]


@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
def test_a_function_whose_shapes_are_stated_is_called_at_execution_only(call, caplog):
    calls = []

    def env_step(action):
        calls.append(int(action))
        return np.full(3, len(calls), np.float32), {5: 50, 6: 60}[int(action)]  # no 0

    compiled = tf.function(lambda action: call(env_step, [action], SPECS))
    for number, action in enumerate([5, 6, 5], 1):
        state, reward = compiled(tf.constant(action))
        assert (np.asarray(state).tolist(), int(reward)) == ([number] * 3, 10 * action)
    assert calls == [5, 6, 5]
    assert caplog.text == ""


def test_one_spec_in_a_decorator_and_on_two_replicas():
    strategy = tf.distribute.MirroredStrategy(jax.devices()[:2])
    calls = []

    @tf.numpy_function(Tout=tf.TensorSpec([2], tf.float32))
    def pair(x):
        calls.append(float(x))
        return np.stack([x, -x])

    rows = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant(c.replica_id_in_sync_group + 1.0)
    )
    results = tf.function(lambda: strategy.run(pair, args=(rows,)))()
    assert [np.asarray(one).tolist() for one in results.values] == [[1.0, -1.0], [2.0, -2.0]]
    assert sorted(calls) == [1.0, 2.0]


@WRAPS
def test_a_result_of_another_shape_than_stated_is_refused(wrap):
    spec = tf.TensorSpec([2], tf.float32)
    run = wrap(lambda x: tf.numpy_function(lambda v: v, [x], spec))
    assert np.asarray(run(tf.constant([1.0, 2.0]))).tolist() == [1.0, 2.0]
    with pytest.raises(Exception, match=r"returned an array of shape \(3,\); Tout is TensorSpec\(shape=\(2,\)"):
        jax.block_until_ready(run(tf.ones([3])))


def test_without_shapes_the_call_while_tracing_is_logged_once_and_named_in_its_errors(caplog):
    def counted(x):
        return np.float32({3: 1}[int(x)])

    def f(x):
        return tf.numpy_function(counted, [x], tf.float32)

    for _ in range(2):
        with pytest.raises(KeyError) as raised:
            tf.function(f)(tf.constant(3.0))
        assert "zeros for arguments that are not known yet" in raised.value.__notes__[0]
    assert caplog.text.count("counted (test_host_calls.py") == 1
    assert "Tout=tf.TensorSpec" in caplog.text


def test_the_call_while_tracing_has_the_values_that_are_known():
    def entry(x):
        return np.float32({3: 7}[int(x)])

    assert float(tf.function(lambda: tf.numpy_function(entry, [tf.constant(1) + 2], tf.float32))()) == 7.0


def test_a_shape_that_changes_is_refused_with_the_remedy():
    run = tf.function(lambda x: tf.numpy_function(np.unique, [x], tf.float32))
    with pytest.raises(Exception, match=r"returned shapes \[\(2,\)\](.|\n)*Tout=tf.TensorSpec"):
        jax.block_until_ready(run(tf.constant([1.0, 2.0])))


def test_a_call_without_result_happens_in_a_loop_through_which_a_gradient_is_taken():
    calls = []

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * 1.0
            for i in tf.range(2):
                y = y * x
                tf.py_function(lambda i, y: calls.append((int(i), float(y))), [i, y], None)
        return tape.gradient(y, x)

    assert run(tf.constant(2.0)) == 12.0
    jax.effects_barrier()
    assert calls == [(0, 4.0), (1, 8.0)]


def test_an_error_in_a_call_without_result_is_raised():
    def fail(x):
        raise KeyError(f"of {x}")

    with pytest.raises(Exception, match="KeyError: 'of 1.0'"):
        jax.block_until_ready(tf.function(lambda x: (tf.py_function(fail, [x], None), x + 1)[1])(tf.constant(1.0)))


@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
def test_the_call_while_tracing_leaves_containers_and_random_generators_as_they_were(call):
    queue, seen, rng = collections.deque([1.0, 2.0, 3.0]), [], np.random.default_rng(0)

    def replay(x):
        seen.append(float(x))
        return np.float32(queue.popleft()), rng.uniform(size=2).astype(np.float32)

    @tf.function
    def step(x):
        return call(replay, [x], [tf.float32, tf.float32])

    results = jax.device_get([step(tf.constant(float(value))) for value in (7, 8)])
    jax.effects_barrier()
    expected = np.random.default_rng(0)
    assert seen == [7.0, 8.0]
    assert list(queue) == [3.0]
    for (taken, drawn), first in zip(results, (1.0, 2.0), strict=True):
        assert taken == first
        np.testing.assert_array_equal(drawn, expected.uniform(size=2).astype(np.float32))
