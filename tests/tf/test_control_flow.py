from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import TransformError

WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def gradient(function: Callable[[Any], Any], at: float) -> float:
    x = tf.constant(at)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return float(tape.gradient(y, x))


@pytest.mark.long
@WRAPS
def test_a_loop_counted_by_constants_has_gradients(wrap: Wrap) -> None:
    def power(x: Any) -> Any:
        return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * x), [tf.constant(0), x])[1]

    assert wrap(power)(tf.constant(2.0)) == 16
    assert wrap(lambda x: gradient_of(power, x))(tf.constant(2.0)) == 32


def gradient_of(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


@WRAPS
def test_a_loop_with_a_limit_has_gradients(wrap: Wrap) -> None:
    def doubling(x: Any) -> Any:
        return tf.while_loop(lambda a: a < 100.0, lambda a: [a * x], [x], maximum_iterations=10)[0]

    assert wrap(doubling)(tf.constant(2.0)) == 128
    assert wrap(lambda x: gradient_of(doubling, x))(tf.constant(2.0)) == 7 * 2.0**6


@pytest.mark.long
def test_a_limit_that_is_never_reached_costs_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    total = tf.Variable(0.0)

    @tf.function
    def doubled(x: Any, limit: int) -> Any:
        def body(count: Any, value: Any) -> Any:
            total.assign_add(value)
            return count + 1, value * 2.0

        loop_vars = [tf.constant(0), tf.constant(1.0)]
        return tf.while_loop(lambda count, value: value < x, body, loop_vars, maximum_iterations=limit)

    assert [float(one) for one in doubled(tf.constant(10.0), 2**31 - 1)] == [4, 16]
    assert float(total) == 15
    monkeypatch.setattr("mirrored.tf._ops.loops.MOST_SCANNED", 1)
    assert [float(one) for one in doubled(tf.constant(10.0), 3)] == [3, 8]


@WRAPS
def test_a_limit_ends_a_loop(wrap: Wrap) -> None:
    assert wrap(lambda x: tf.while_loop(lambda a: True, lambda a: a + x, [x], maximum_iterations=3))(
        tf.constant(1.0)
    ) == [4]


@WRAPS
def test_a_loop_decided_by_data(wrap: Wrap) -> None:
    found = wrap(lambda x: tf.while_loop(lambda n, a: a < 100.0, lambda n, a: (n + 1, a * 2), (0, x)))(tf.constant(3.0))
    assert isinstance(found, tuple)
    assert list(map(float, found)) == [6, 192]


@WRAPS
def test_loop_variables_keep_their_structure(wrap: Wrap) -> None:
    start = {"n": tf.constant(0), "xs": [tf.zeros([2]), None]}
    run = wrap(
        lambda: tf.while_loop(lambda s: s["n"] < 2, lambda s: {"n": s["n"] + 1, "xs": [s["xs"][0] + 1, None]}, [start])
    )
    (end,) = run()
    assert end["n"] == 2
    np.testing.assert_array_equal(end["xs"][0], [2, 2])
    assert end["xs"][1] is None


def test_a_traced_loop_keeps_shapes() -> None:
    @tf.function
    def grow(x: Any) -> Any:
        return tf.while_loop(lambda a: tf.reduce_sum(a) < 5, lambda a: [tf.concat([a, a], 0)], [x])

    with pytest.raises(tf.errors.InvalidArgumentError, match="must keep the structure, shapes and dtypes"):
        grow(tf.ones([1]))


def test_an_eager_loop_may_change_shapes_and_run_python() -> None:
    seen: list[float] = []

    def body(a: Any) -> Any:
        seen.append(float(tf.reduce_sum(a)))
        return tf.concat([a, a], 0)

    (end,) = tf.while_loop(lambda a: tf.reduce_sum(a) < 5, body, [tf.ones([1])])
    assert end.shape == (8,)
    assert seen == [1, 2, 4]


@pytest.mark.first(1)
@WRAPS
@pytest.mark.parametrize(("at", "expected", "slope"), [(2.0, 20.0, 10.0), (-1.0, 1.0, -1.0)])
def test_cond(wrap: Wrap, at: float, expected: float, slope: float) -> None:
    def run(x: Any) -> Any:
        return tf.cond(x > 0, lambda: x * 10.0, lambda: -x)

    assert wrap(run)(tf.constant(at)) == expected
    assert wrap(lambda x: gradient_of(run, x))(tf.constant(at)) == slope


def test_only_the_chosen_branch_of_a_known_condition_runs() -> None:
    seen = []
    assert tf.cond(True, lambda: seen.append(1) or 5, lambda: seen.append(2)) == 5
    assert seen == [1]


def test_traced_branches_agree() -> None:
    @tf.function
    def run(x: Any) -> Any:
        return tf.cond(x > 0, lambda: tf.zeros([2]), lambda: tf.zeros([3]))

    with pytest.raises(tf.errors.InvalidArgumentError, match="branches must return the same"):
        run(tf.constant(1.0))


@WRAPS
@pytest.mark.parametrize(("index", "expected"), [(0, 10), (1, 20), (5, 20), (-1, 20)])
def test_switch_case(wrap: Wrap, index: int, expected: int) -> None:
    branches = [lambda: tf.constant(10), lambda: tf.constant(20)]
    assert wrap(lambda i: tf.switch_case(i, branches))(tf.constant(index)) == expected


def test_switch_case_by_number() -> None:
    branches = {3: lambda: tf.constant(30), 7: lambda: tf.constant(70)}
    assert tf.switch_case(tf.constant(7), branches, default=lambda: tf.constant(0)) == 70
    assert tf.switch_case(tf.constant(5), branches, default=lambda: tf.constant(0)) == 0


@WRAPS
@pytest.mark.parametrize(("at", "expected"), [(1.0, 1.0), (-3.0, 3.0), (0.0, 7.0)])
def test_case(wrap: Wrap, at: float, expected: float) -> None:
    def run(x: Any) -> Any:
        return tf.case([(x > 0, lambda: x), (x < 0, lambda: -x)], default=lambda: tf.constant(7.0))

    assert wrap(run)(tf.constant(at)) == expected


def test_exclusive_case() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than one condition"):
        tf.case([(True, lambda: 1), (True, lambda: 2)], exclusive=True)


@WRAPS
@pytest.mark.long
def test_maps_and_folds(wrap: Wrap) -> None:
    v = tf.Variable(2.0)
    rows = (tf.constant([1.0, 2.0, 3.0]), tf.constant([4.0, 5.0, 6.0]))
    signature = {"sum": tf.float32, "scaled": tf.TensorSpec([])}
    both = wrap(lambda rows: tf.map_fn(lambda r: {"sum": r[0] + r[1], "scaled": r[0] * v}, rows, signature))(rows)
    np.testing.assert_array_equal(both["sum"], [5, 7, 9])
    np.testing.assert_array_equal(both["scaled"], [2, 4, 6])
    np.testing.assert_array_equal(wrap(lambda x: tf.vectorized_map(lambda r: r * v, x))(rows[0]), [2, 4, 6])
    scanned = wrap(lambda x: tf.scan(lambda a, r: a * v + r, x))(rows[0])
    np.testing.assert_array_equal(scanned, [1, 4, 11])
    backwards = wrap(lambda x: tf.scan(lambda a, r: a * v + r, x, reverse=True))(rows[0])
    np.testing.assert_array_equal(backwards, [17, 8, 3])
    started = wrap(lambda x: tf.scan(lambda a, r: a + r, x, initializer=tf.constant(10.0)))(rows[0])
    np.testing.assert_array_equal(started, [11, 13, 16])
    assert wrap(lambda x: tf.foldl(lambda a, r: a * v + r, x))(rows[0]) == 11
    assert wrap(lambda x: tf.foldr(lambda a, r: a * v + r, x))(rows[0]) == 17


@WRAPS
def test_a_vectorized_map_repeats_a_single_row(wrap: Wrap) -> None:
    sums = wrap(lambda x: tf.vectorized_map(lambda pair: pair[0] + pair[1], (x, tf.constant([10.0]))))
    np.testing.assert_array_equal(sums(tf.constant([1.0, 2.0, 3.0])), [11, 12, 13])


@WRAPS
@pytest.mark.parametrize(
    ("fn", "options", "error"),
    [
        (lambda x: tf.cast(x, tf.float32), {}, tf.errors.InvalidArgumentError),
        (lambda _: 1.5, {}, tf.errors.InvalidArgumentError),
        (lambda x: (x, x), {"dtype": (tf.int32, tf.float32)}, tf.errors.InvalidArgumentError),
        (lambda x: (x, x), {}, ValueError),
    ],
)
def test_a_mapped_function_returns_the_declared_dtypes(wrap: Wrap, fn: Any, options: Any, error: Any) -> None:
    with pytest.raises(error, match=r"expected|structure"):
        wrap(lambda x: tf.map_fn(fn, x, **options))(tf.constant([1, 2, 3]))


@WRAPS
def test_a_mapped_function_with_a_signature(wrap: Wrap) -> None:
    numbers = tf.constant([1, 2, 3])
    halves = wrap(lambda x: tf.map_fn(lambda one: one / 2, x, fn_output_signature=tf.float32))(numbers)
    ones = wrap(lambda x: tf.map_fn(lambda _: 1, x, fn_output_signature=tf.float32))(numbers)
    assert (halves.tolist(), ones.tolist(), ones.dtype) == ([0.5, 1.0, 1.5], [1.0, 1.0, 1.0], tf.float32)


@WRAPS
def test_recomputed_gradients(wrap: Wrap) -> None:
    v = tf.Variable(3.0)

    def run() -> Any:
        with tf.GradientTape() as tape:
            y = tf.recompute_grad(lambda x: x * v * v)(tf.constant(2.0))
        return y, tape.gradient(y, v)

    assert list(map(float, wrap(run)())) == [18, 12]


def _with_options(x: Any, scale: Any, axis: int = 0, training: bool = False, kind: str = "tanh") -> Any:
    y = x * 3.0 if training is True else x
    return tf.reduce_sum({"tanh": tf.tanh, "none": tf.identity}[kind](y) * scale, axis=axis)


@pytest.mark.long
@WRAPS
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"training": True}, {"kind": "none", "training": True}])
@pytest.mark.parametrize("scale", [2.0, np.float32(2.0), tf.Variable(2.0)], ids=lambda one: type(one).__name__)
def test_recomputed_functions_get_their_options_as_they_are(wrap: Wrap, options: Any, scale: Any) -> None:
    def run(f: Any) -> Any:
        with tf.GradientTape() as tape:
            x = tf.constant([[1.0, 2.0]])
            tape.watch(x)
            y = f(x * 0.5, scale, **options)
        return tape.gradient(y, x)

    recomputed = wrap(lambda: run(tf.recompute_grad(_with_options)))()
    np.testing.assert_allclose(recomputed, run(_with_options), rtol=1e-6)


def test_gradients_passed_through() -> None:
    assert gradient(tf.grad_pass_through(tf.round), 2.4) == 1
    assert tf.grad_pass_through(tf.round)(2.4) == 2
    # The result is that of the function: a sum of the argument and the difference would be 0.0, and nan.
    for large in (1e9, np.inf):
        assert tf.grad_pass_through(tf.sign)(large) == 1
        assert tf.function(tf.grad_pass_through(tf.sign))(tf.constant(large)) == 1
        assert gradient(tf.grad_pass_through(tf.sign), large) == 1
    assert gradient(lambda x: tf.cast(tf.grad_pass_through(lambda x: tf.cast(x, tf.float16))(x), tf.float32), 2.4) == 1
    assert tf.grad_pass_through(lambda x: tf.cast(x, tf.int32))(2.4).dtype == tf.int32
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        tf.grad_pass_through(tf.reduce_sum)(tf.ones(2))


def _loop(x: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * w), (0, x))[1]


def _cond(x: Any, w: Any) -> Any:
    return tf.cond(x > 0.5, lambda: x * w * w, lambda: x * w)


def _case(x: Any, w: Any) -> Any:
    return tf.case([(x > 5.0, lambda: x * w), (x > 0.5, lambda: x * w * w * w)], default=lambda: w + 0.0)


def _switch(x: Any, w: Any) -> Any:
    return tf.switch_case(tf.cast(x, tf.int32), [lambda: w + 0.0, lambda: x * w * w])


def _nested(x: Any, w: Any) -> Any:
    return tf.cond(x > 0.5, lambda: _loop(x, w), lambda: x)


# With w = 2 and x = 1: the slope of each in w.
_SLOPES = {_loop: 12.0, _cond: 4.0, _case: 12.0, _switch: 4.0, _nested: 12.0}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (1, 2), (2, 4)])
@pytest.mark.parametrize("model", list(_SLOPES))
@pytest.mark.first(2)
def test_gradients_of_variables_that_only_control_flow_reads(
    model: Callable[..., Any], devices: int, replicas: int, deterministic: bool
) -> None:
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        w = tf.Variable(2.0)

    def replica(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            alone = model(x, w)
            partly = model(x, w) + 10.0 * w
        return tape.gradient(alone, w), tape.gradient(partly, w)

    x = strategy.experimental_distribute_values_from_function(lambda context: tf.constant(1.0))
    want = _SLOPES[model]
    for run in (lambda: strategy.run(replica, args=(x,)), tf.function(lambda: strategy.run(replica, args=(x,)))):
        results = [strategy.experimental_local_results(one) for one in run()]
        assert [[float(one) for one in result] for result in results] == [[want] * replicas, [want + 10.0] * replicas]


@pytest.mark.first(1)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_recomputed_functions_draw_the_same_numbers_and_assign_once(wrap: Any) -> None:
    weights, calls = tf.Variable(tf.ones([64])), tf.Variable(0.0)

    def dropped(x: Any) -> Any:
        calls.assign_add(1.0)
        return tf.nn.dropout(x * weights, 0.5)

    def step() -> Any:
        with tf.GradientTape() as tape:
            first, second = (tf.recompute_grad(dropped)(tf.ones([64])) for _ in range(2))
            total = first + 3 * second
        return first, second, total, tape.gradient(total, weights)

    run = wrap(step)
    for count in (2.0, 4.0):
        first, second, total, gradient = run()
        np.testing.assert_allclose(gradient, total)
        assert set(np.unique(first)) == {0.0, 2.0}
        assert not np.array_equal(first, second)
        assert float(calls.read_value()) == count


@pytest.mark.first(2)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "mirrored"])
def test_recomputed_functions_update_a_variable_once_for_all_replicas(wrap: Any, is_plain: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    with contextlib.nullcontext() if is_plain else strategy.scope():
        weights, optimizer = mr.Variable(jnp.ones(3)), mr.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build([weights])

    def updating(x: Any) -> Any:
        optimizer.apply_gradients([(jnp.ones(3), weights)], skip_gradients_aggregation=True)
        return x * weights

    def replica_step() -> Any:
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.recompute_grad(tf.recompute_grad(updating))(x)
        return tape.gradient(y, x)

    wrap(lambda: strategy.run(replica_step))()
    np.testing.assert_allclose(weights.read_value(), [0.9] * 3, rtol=1e-6)
    assert int(optimizer.iterations.read_value()) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("devices", [0, 1, 2], ids=lambda devices: f"run on {devices}" if devices else "no run")
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("num_tapes", [1, 2])
@pytest.mark.parametrize("recompute", [lambda f: f, tf.recompute_grad], ids=["plain", "recomputed"])
def test_a_recomputed_function_reads_what_it_has_assigned(
    recompute: Any, num_tapes: int, wrap: Any, devices: int
) -> None:
    """Eager tapes read the value from before; compiled ones found no gradient, or raised `UnexpectedTracerError`."""
    strategy = tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(max(devices, 1))], num_replicas=2)
    with strategy.scope():
        v = tf.Variable(2.0)

    def assigning(x: Any) -> Any:
        v.assign(v * x)
        return x * v * v

    def step() -> Any:
        x = tf.constant(3.0)
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with contextlib.nullcontext(outer) if num_tapes == 1 else tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                y = recompute(assigning)(x)
            first = inner.gradient(y, [x, v])
        return y, *first, *([] if num_tapes == 1 else [outer.gradient(first[0], v)])

    results = wrap(lambda: strategy.run(step) if devices else step())()
    assert float(v) == 6.0
    for result, expected in zip(results, [108.0, 36.0, 36.0, 12.0][: 2 + num_tapes], strict=True):
        assert set(map(float, strategy.experimental_local_results(result))) == {expected}


def _branching_after(v: Any, x: Any) -> Any:
    v.assign(v * x)
    return tf.cond(x > 1.0, lambda: v.assign(v * 2.0) * v * x, lambda: x) * v


def _nested_recomputing(v: Any, x: Any) -> Any:
    v.assign(v * x)
    return tf.recompute_grad(lambda x: v.assign_add(x) * v * x)(x) * v


@pytest.mark.parametrize("model", [_branching_after, _nested_recomputing])
def test_gradients_through_blocks_of_a_recomputed_function_under_a_tape_outside(model: Any) -> None:
    """The tape is around the compiled function: no tape is open where it is traced."""
    found = []
    for recompute in (lambda f: f, tf.recompute_grad):
        v, x = tf.Variable(2.0), tf.constant(3.0)
        compiled = tf.function(recompute(functools.partial(model, v)))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = compiled(x)
        found.append([float(y), *map(float, tape.gradient(y, [x, v]))])
    assert found[0] == found[1]


def test_a_recomputed_function_assigns_a_plain_variable_in_the_replicas_of_two_devices() -> None:
    """The new value was committed to the device of the first replica: the second raised JAX's `ValueError`."""
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    plain = tf.Variable(2.0)
    with strategy.scope():
        v = tf.Variable(1.0)

    def replica() -> Any:
        with tf.GradientTape():
            return tf.recompute_grad(lambda: plain.assign_add(v * 1.0) * v)()

    results = strategy.experimental_local_results(strategy.run(replica))
    assert list(map(float, results)) == [3.0, 4.0]
    assert float(plain + jax.device_put(1.0, jax.devices()[1])) == 5.0


@pytest.mark.first(1)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_recomputed_dropout_in_replicas(wrap: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        weights = tf.Variable(tf.ones([64]))

    def step() -> Any:
        with tf.GradientTape() as tape:
            found = tf.recompute_grad(lambda x: tf.nn.dropout(x * weights, 0.5))(tf.ones([64]))
        return found, tape.gradient(found, weights)

    found, gradient = wrap(lambda: strategy.run(step))()
    np.testing.assert_allclose(found, gradient)
    assert set(np.unique(found)) == {0.0, 2.0}


@pytest.mark.parametrize(("devices", "wrap"), [(1, lambda f: f), (2, lambda f: f), (1, tf.function)])
def test_recompute_grad_refuses_an_assignment_that_aggregates(devices: int, wrap: Wrap) -> None:
    """The replicas would have to wait for each other inside of it. Eager runs raised errors of JAX."""
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=2)
    with strategy.scope():
        mean = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN, trainable=False)
    step = wrap(lambda: strategy.run(lambda: tf.recompute_grad(lambda x: mean.assign(x))(tf.constant(1.0))))
    with tf.GradientTape(), pytest.raises(mr.errors.MergeError, match="under a JAX transform"):
        step()
    assert float(mean.numpy()) == 0


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_in_a_recomputed_function_has_the_gradients_of_a_run_outside(devices: int, deterministic: bool) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=2, deterministic=deterministic)
    with strategy.scope():
        v = tf.Variable(1.0)

    def replica(x: Any) -> Any:
        v.assign(v * 2.0)
        return v * x

    total = tf.recompute_grad(lambda x: strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None))
    step = tf.function(lambda x: total(x))
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = step(x)
    # The assignment has no derivative: the gradient of the value that is read after it flows to the variable.
    assert list(map(float, tape.gradient(y, [v, x]))) == [6.0, 4.0]


def _printing(i: Any) -> Any:
    tf.print("at", i)
    return i < 2


def _known(x: Any, limit: int | None) -> Any:
    return tf.while_loop(
        lambda i, _: _printing(i), lambda i, y: (i + 1, y * x), [tf.constant(0), x], maximum_iterations=limit
    )[1]


def _decided_at_run_time(x: Any, limit: int | None) -> Any:
    start = tf.cast(x * 0.0, tf.int32)
    return tf.while_loop(lambda i, _: _printing(i), lambda i, y: (i + 1, y * x), [start, x], maximum_iterations=limit)[
        1
    ]


def _converted(x: Any, limit: int | None) -> Any:
    del limit
    i = tf.constant(0)
    y = x
    while _printing(i):
        i += 1
        y *= x
    return y


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("loop", [_known, _decided_at_run_time, _converted])
@WRAPS
def test_the_effects_of_a_condition_happen_once_per_evaluation(
    wrap: Wrap, loop: Any, limit: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tf.function` left out a condition if it knew the number of iterations, and else repeated it up to the limit."""
    assert wrap(lambda x: loop(x, limit))(tf.constant(2.0)) == 8
    jax.effects_barrier()
    assert capsys.readouterr().err == "at 0\nat 1\nat 2\n"


@WRAPS
def test_a_loop_counted_by_constants_has_gradients_if_its_condition_prints(
    wrap: Wrap, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrap(lambda x: gradient_of(lambda one: _known(one, None), x))(tf.constant(2.0)) == 12
    jax.effects_barrier()
    assert capsys.readouterr().err == "at 0\nat 1\nat 2\n"


@WRAPS
def test_a_condition_asks_the_host_until_it_is_false(wrap: Wrap) -> None:
    answers: list[bool] = []

    def ask(i: Any) -> Any:
        answers.append(len(answers) != 2)
        return np.bool_(answers[-1])

    def test(i: Any) -> Any:
        return tf.numpy_function(ask, [i], tf.bool)

    run = wrap(lambda x: tf.while_loop(test, lambda i: (i + 1,), [x], maximum_iterations=6)[0])
    run(tf.constant(0))
    answers.clear()
    assert run(tf.constant(0)) == 2
    assert answers == [True, True, False]


def test_the_assertions_of_a_compiled_condition_are_checked(caplog: pytest.LogCaptureFixture) -> None:
    def test(i: Any) -> Any:
        tf.debugging.assert_less(i, 2, message="too far")
        return i < 2

    assert tf.function(lambda: tf.while_loop(test, lambda i: (i + 1,), [tf.constant(0)])[0])() == 2
    jax.effects_barrier()
    assert caplog.text.count("too far") == 1


def _assigned_then_read(v: Any, helper: Any, x: Any) -> Any:
    v.assign_add(1.0)
    return helper(x) + helper(x * 2.0)


def _read_around_assignments(v: Any, helper: Any, x: Any) -> Any:
    before = helper(x)
    v.assign_add(1.0)
    between = helper(x)
    v.assign_add(1.0)
    return before + 2.0 * between + 3.0 * helper(x)


def _assigned_in_a_nested_block(v: Any, helper: Any, x: Any) -> Any:
    def inner(x: Any) -> Any:
        v.assign_add(1.0)
        return helper(x)

    return helper(x) + tf.recompute_grad(inner)(x) * helper(x)


def _assigned_under_a_tape(v: Any, helper: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        v.assign_add(1.0)
        y = helper(x)
    return tape.gradient(y, x) + helper(x)


@pytest.mark.first(2)
@pytest.mark.parametrize("devices", [0, 1, 2], ids=lambda devices: f"run on {devices}" if devices else "no run")
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize(
    "block", [_assigned_then_read, _read_around_assignments, _assigned_in_a_nested_block, _assigned_under_a_tape]
)
def test_a_jitted_function_reads_what_a_recomputed_function_has_assigned(block: Any, wrap: Any, devices: int) -> None:
    """JAX reused its trace: with the value from before, silently, or with an `UnexpectedTracerError`."""
    strategy = tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(max(devices, 1))], num_replicas=2)
    found = []
    for jit in (lambda f: f, jax.jit):
        with strategy.scope():
            v = tf.Variable(1.5)
        recomputed = tf.recompute_grad(functools.partial(block, v, jit(lambda x, v=v: tf.sin(x * v))))

        def step(v: Any = v, recomputed: Any = recomputed) -> Any:
            with tf.GradientTape() as tape:
                y = recomputed(tf.constant(2.0))
            return y, tape.gradient(y, v)

        run = wrap(functools.partial(strategy.run, step) if devices else step)
        results = [np.concatenate([np.ravel(one) for one in jax.tree.leaves(run())]) for _ in range(3)]
        found.append([results, float(v.read_value())])
    np.testing.assert_allclose(*(values for values, _ in found), rtol=1e-5)
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_jitted_function_that_reads_an_attribute_of_a_recomputed_function(wrap: Wrap) -> None:
    holder = types.SimpleNamespace(scale=None)
    helper = jax.jit(lambda x: x * holder.scale)
    with_argument = jax.jit(lambda x, scale: x * scale)

    @tf.recompute_grad
    def reading(x: Any) -> Any:
        holder.scale = tf.sin(x)
        return helper(x)

    @tf.recompute_grad
    def passing(x: Any) -> Any:
        holder.scale = tf.sin(x)
        return with_argument(x, holder.scale)

    def step(block: Any) -> Any:
        return wrap(lambda x: gradient_of(block, x))

    expected = [np.sin(at) + at * np.cos(at) for at in (1.0, 2.0)]
    np.testing.assert_allclose([step(passing)(tf.constant(at)) for at in (1.0, 2.0)], expected, rtol=1e-5)
    np.testing.assert_allclose(step(reading)(tf.constant(1.0)), expected[0], rtol=1e-5)
    if wrap is tf.function:
        np.testing.assert_allclose(step(reading)(tf.constant(2.0)), expected[1], rtol=1e-5)
        return
    with pytest.raises(TransformError, match="tf.recompute_grad: .*uses a value that an earlier trace has stored"):
        step(reading)(tf.constant(2.0))
