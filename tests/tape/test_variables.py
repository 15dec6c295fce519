"""Tapes and variables: reads in the block are tracked, also inside nested functions that JAX caches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mirrored.compilation import function
from mirrored.errors import StructureError, TapeError, TransformError
from mirrored.strategies import MirroredStrategy
from mirrored.tape import GradientTape, custom_gradient, stop_gradient, unrecorded
from mirrored.tape.forward_accumulator import ForwardAccumulator
from mirrored.variables import Variable, VariableAggregation


@pytest.fixture
def v():
    return Variable(2.0, name="v")


def test_trainable_variables_are_watched_when_read(v):
    n = Variable(3.0, trainable=False, name="n")
    with GradientTape(persistent=True) as tape:
        assert tape.watched_variables() == ()
        y = v * v * n
    assert float(tape.gradient(y, v)) == 12.0
    assert tape.gradient(y, n) is None
    assert tape.watched_variables() == (v,)


def test_other_variables_are_watched_by_hand(v):
    n = Variable(3.0, trainable=False)
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(n)
        y = v * n
    assert tape.watched_variables()[0] is n
    of_v, of_n = tape.gradient(y, [v, n])
    assert of_v is None
    assert float(of_n) == 2.0


def test_unread_variables_have_no_gradient(v):
    unread = Variable([1.0, 2.0])
    with GradientTape(persistent=True) as tape:
        y = v * 2.0
    assert tape.gradient(y, unread) is None
    assert tape.gradient(y, unread, unconnected_gradients="zero").tolist() == [0.0, 0.0]


def test_a_read_before_the_tape_is_a_constant(v):
    constant = v.read_value()
    with GradientTape() as tape:
        y = constant * constant
    assert tape.gradient(y, v) is None


@pytest.mark.parametrize("around", [lambda step: step, function])
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.first(2)
def test_a_watched_value_of_a_variable_is_another_array_than_later_reads(v, around, is_inside):
    def step():
        before = v.read_value()
        with GradientTape(watch_accessed_variables=False) as tape:
            value = v.read_value() if is_inside else before
            tape.watch(value)
            y = value * 2.0 + v * 10.0
        return tape.gradient(y, value)

    assert float(around(step)()) == 2.0


@pytest.mark.parametrize("around", [lambda step: step, function])
@pytest.mark.parametrize("watches", [True, False])
@pytest.mark.first(2)
def test_every_read_of_a_watched_variable_is_another_array(v, around, watches):
    def step():
        with GradientTape(persistent=True) as tape:
            first = v.read_value()
            if watches:
                tape.watch(first)
            second = v.read_value()
            y = first * 2.0 + second * 10.0 + jax.jit(lambda: v * 100.0)()
        return tape.gradient(y, [first, second, v])

    assert [float(one) for one in around(step)()] == [2.0, 10.0, 112.0]


@pytest.mark.parametrize("around", [lambda step: step, function])
@pytest.mark.parametrize("read", [Variable.read_value, lambda v: jax.jit(v.read_value)()])
@pytest.mark.first(2)
def test_a_read_while_tapes_are_suspended_is_a_constant(v, around, read):
    def step():
        with GradientTape() as tape:
            with unrecorded():
                constant = read(v)
            y = v * constant
        return tape.gradient(y, v)

    assert float(around(step)()) == 2.0


def test_the_value_at_recording_time_counts_and_reads_add_up(v):
    with GradientTape() as tape:
        y = v * 3.0
        v.assign(10.0)
        z = v * y
    assert float(tape.gradient(z, v)) == 36.0


def test_what_was_assigned_is_not_the_way_back(v):
    x = jnp.array(5.0)
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        v.assign(x * x)
        y = v * 2.0
    assert float(tape.gradient(y, v)) == 2.0
    assert tape.gradient(y, x) is None


def test_a_variable_made_in_the_block(v):
    with GradientTape() as tape:
        w = Variable(4.0)
        y = w * w
    assert float(tape.gradient(y, w)) == 8.0


def test_a_variable_as_target(v):
    other = Variable(5.0)
    x = jnp.array(3.0)
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = v * x * other
    assert float(tape.gradient(v, v)) == 1.0
    assert tape.gradient(v, other) is None
    assert float(tape.gradient([v, y], v)) == 16.0


def test_python_maximum_of_variables():
    variables = [Variable(float(k)) for k in (1, 2, 3)]
    with GradientTape() as tape:
        y = max(variables, key=float) * 1.0
    assert [None if g is None else float(g) for g in tape.gradient(y, variables)] == [None, None, 1.0]


def test_one_training_step_after_another(v):
    slopes = []
    for k in range(3):
        with GradientTape() as tape:
            y = v * v * float(k + 1)
        slopes.append(float(tape.gradient(y, v)))
        v.assign_sub(0.1 * slopes[-1])
    np.testing.assert_allclose(slopes, [4.0, 2 * 2 * 1.6, 3 * 2 * 0.96], rtol=1e-6)


def test_several_tapes_over_a_shared_variable(v):
    shared = Variable([3.0, -1.0])
    total = jnp.zeros(2)
    for head in (Variable([1.0, 2.0]), Variable([3.0, 4.0])):
        with GradientTape() as tape:
            y = jnp.sum(jnp.tanh(0.3 * shared) * head)
        of_shared, of_head = tape.gradient(y, [shared, head])
        total += of_shared
        np.testing.assert_allclose(of_head, np.tanh(0.3 * shared.numpy()), rtol=1e-6)
    expected = 0.3 * (1 - np.tanh(0.3 * shared.numpy()) ** 2) * np.array([4.0, 6.0])
    np.testing.assert_allclose(total, expected, rtol=1e-5)


# Functions that JAX traces once and caches


def test_a_persistent_helper_reads_variables_fresh_under_every_tape(v):
    traces = []

    @jax.jit
    def inner(y):
        return y * v

    @jax.jit
    def helper(y):
        traces.append(y)
        return inner(y) + jnp.sin(v)

    for k in range(3):
        with GradientTape() as tape:
            y = helper(3.0)
        now = 2.0 + k
        assert float(y) == pytest.approx(3 * now + np.sin(now), rel=1e-6)
        assert float(tape.gradient(y, v)) == pytest.approx(3 + np.cos(now), rel=1e-5)
        v.assign_add(1.0)
    assert len(traces) == 1
    with pytest.raises(TransformError, match="reading v"):
        helper(3.0)


def test_a_helper_reads_the_new_value_after_an_assignment_in_the_same_block(v):
    @jax.jit
    def helper(y):
        return y * v

    with GradientTape() as tape:
        first = helper(1.0)
        v.assign(7.0)
        second = helper(1.0)
    assert (float(first), float(second)) == (2.0, 7.0)
    assert float(tape.gradient([first, second], v)) == 2.0


def test_a_persistent_helper_closes_over_boxes_through_an_object(v):
    held = {}

    @jax.jit
    def helper(y):
        return y * held["w"]

    for k in range(3):
        with GradientTape() as tape:
            held["w"] = v * 2.0
            y = helper(3.0) + helper(4.0)
            held["w"] = v * 3.0
            y = y + helper(1.0)
        assert float(y) == 17.0 * (2.0 + k)
        assert float(tape.gradient(y, v)) == 17.0
        v.assign_add(1.0)
    assert [float(helper(3.0)) for _ in range(3)] == [36.0] * 3
    assert float(helper(jnp.ones(2))[1]) == 12.0


def test_a_persistent_scan_body_and_checkpoint(v):
    held = {}

    def body(carry, _):
        return carry * held["w"] + v, None

    block = jax.checkpoint(lambda y: jnp.sin(y * held["w"]) * v)
    for _ in range(2):
        with GradientTape() as tape:
            held["w"] = v * 2.0
            y = lax.scan(body, 1.0, None, length=2)[0] + block(0.5)
        now = float(v.numpy())

        def plain(u):
            w = u * 2.0
            return (w + u) * w + u + jnp.sin(0.5 * w) * u

        assert float(y) == pytest.approx(float(plain(now)), rel=1e-6)
        assert float(tape.gradient(y, v)) == pytest.approx(float(jax.grad(plain)(now)), rel=1e-5)
        v.assign_add(1.0)


def test_library_functions_are_traced_once_for_all_tapes(v):
    traces = []

    @jax.jit
    def library(x):
        traces.append(x)
        return jnp.sin(x)

    for _ in range(4):
        with GradientTape() as tape:
            y = library(v * 2.0) + lax.scan(lambda c, _, w=v * 3.0: (c * w, None), 1.0, None, length=2)[0]
        assert tape.gradient(y, v) is not None
    assert len(traces) == 1


@pytest.mark.long
def test_reads_under_every_kind_of_transform(v):
    with GradientTape() as tape:
        y = lax.scan(lambda c, _: (c * v, None), 1.0, None, length=3)[0]
        y += lax.cond(True, lambda: v * v, lambda: v * 1.0)
        y += jax.vmap(lambda a: a * v)(jnp.arange(3.0)).sum()
        y += jax.grad(lambda a: a * a * v)(2.0)
        y += jnp.sum(jax.jit(lambda a: a * v)(jnp.ones(2))) + jax.checkpoint(lambda q: q * v)(2.0)
        y += jax.jit(jax.vmap(lambda a: lax.fori_loop(0, 2, lambda i, b: b * v, a)))(jnp.ones(2)).sum()
        y += jnp.where(v > 0, v, 0.0) + jax.nn.relu(v) + lax.mul(v, v)
    assert float(tape.gradient(y, v)) == 12.0 + 4.0 + 3.0 + 4.0 + 2.0 + 2.0 + 8.0 + 1.0 + 1.0 + 4.0


def test_untrainable_and_integer_variables_stay_fresh_in_helpers(v):
    n, count = Variable(3.0, trainable=False), Variable(2)

    @jax.jit
    def helper(y):
        return y * n * count

    for k in range(2):
        with GradientTape() as tape:
            y = helper(v)
        assert float(y) == 2.0 * (3.0 + k) * (2 + k)
        assert float(tape.gradient(y, v)) == (3.0 + k) * (2 + k)
        n.assign_add(1.0)
        count.assign_add(1)


def test_nested_tapes_with_a_helper(v):
    @jax.jit
    def helper(y):
        return y * v * v * v

    for k in range(2):
        now = 2.0 + k
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = helper(2.0)
            slope = inner.gradient(y, v)
        assert float(slope) == 6 * now**2
        assert float(outer.gradient(slope, v)) == 12 * now
        v.assign_add(1.0)


# Functions with custom gradients


def test_custom_gradient_with_variables(v):
    @custom_gradient
    def scaled(x):
        y = x * v

        def gradient(upstream, variables=None):
            return upstream * 10.0, [upstream * 20.0 for _ in variables]

        return y, gradient

    x = jnp.array(2.0)
    with GradientTape() as tape:
        tape.watch(x)
        y = scaled(x)
    of_x, of_v = tape.gradient(y, [x, v])
    assert (float(y), float(of_x), float(of_v)) == (4.0, 10.0, 20.0)


def test_custom_gradient_that_hides_its_variables_is_refused(v):
    @custom_gradient
    def scaled(x):
        return x * v, lambda upstream: upstream

    with GradientTape() as tape:
        x = jnp.array(2.0)
        tape.watch(x)
        with pytest.raises(TypeError, match="reads the variables 'v'(.|\n)*accept a keyword argument 'variables'"):
            scaled(x)


def test_stop_gradient_of_a_variable(v):
    with GradientTape() as tape:
        y = stop_gradient(v) * v
    assert float(tape.gradient(y, v)) == 2.0


def test_watched_variables_are_in_order_of_their_creation(v):
    later, unread = Variable(3.0), Variable(4.0)
    with GradientTape() as tape:
        _ = later * v
    assert [one is other for one, other in zip(tape.watched_variables(), (v, later), strict=True)] == [True, True]
    assert unread.trainable


@pytest.mark.parametrize("around", [lambda step: step, function], ids=["the call", "the step"])
def test_a_compiled_custom_gradient_has_gradients_of_variables(v, around):
    fixed = Variable(5.0, trainable=False)

    @custom_gradient
    def scaled(x):
        def pull(upstream, variables=None):
            return upstream * 2.0, [upstream * 7.0 * x for _ in variables]

        return x * v * fixed, pull

    compiled = function(lambda x: scaled(x) * 3.0)

    def step(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = compiled(x)
        return y, tape.gradient(y, [x, v, fixed])

    y, (of_x, of_v, of_fixed) = around(step)(jnp.float32(2.0))
    assert (y, of_x, of_v, of_fixed) == (60.0, 6.0, 42.0, None)


def test_a_compiled_custom_gradient_without_variables_in_its_gradient(v):
    @custom_gradient
    def scaled(x):
        return x * v, lambda upstream: upstream

    x = jnp.float32(2.0)
    with GradientTape() as tape:
        tape.watch(x)
        y = function(scaled)(x)
    with pytest.raises(TapeError, match="accept 'variables'"):
        tape.gradient(y, x)


@jax.custom_vjp
def _tripled(x):
    return x * x


_tripled.defvjp(lambda x: (x * x, x), lambda x, cotangent: (3.0 * x * cotangent,))

CUSTOM_RULES_OVER_A_VARIABLE = {
    "vmap": jax.vmap(jax.nn.relu),
    "another axis": jax.vmap(jax.nn.relu, in_axes=1, out_axes=1),
    "nested": jax.vmap(jax.vmap(jax.nn.silu)),
    "lambda": jax.vmap(lambda row: jax.nn.relu(row) * 2.0),
    "custom_vjp": jax.vmap(_tripled),
    "custom_vjp, jit": jax.vmap(jax.jit(_tripled)),
    "checkpoint": jax.vmap(jax.checkpoint(_tripled)),
    "map": lambda x: lax.map(jax.nn.relu, x),
    "softmax": jax.vmap(jax.nn.softmax),
}


@pytest.mark.parametrize("name", CUSTOM_RULES_OVER_A_VARIABLE)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.first(6)
def test_functions_with_custom_rules_take_variables_through_transformations(name, compiled):
    transformed, start = CUSTOM_RULES_OVER_A_VARIABLE[name], jnp.asarray([[1.0, -2.0, 3.0], [-1.0, 0.5, 2.0]])
    weights, variable = jnp.arange(6.0).reshape(2, 3), Variable(start)

    def gradient():
        with GradientTape() as tape:
            y = jnp.sum(transformed(variable) * weights)
        return tape.gradient(y, variable)

    expected = jax.grad(lambda x: jnp.sum(transformed(x) * weights))(start)
    np.testing.assert_allclose(function(gradient)() if compiled else gradient(), expected, rtol=1e-6)


@pytest.mark.sampled(3)
def test_a_custom_rule_in_run_takes_a_mirrored_variable_through_vmap(way):
    with way.strategy.scope():
        variable = Variable(jnp.asarray([[1.0, -2.0], [3.0, -1.0]]))

    def replica():
        with GradientTape() as tape:
            y = jnp.sum(jax.vmap(jax.nn.relu)(variable) ** 2)
        return tape.gradient(y, variable)

    results = way.compile(lambda: way.strategy.run(replica))()
    for component in way.strategy.experimental_local_results(results):
        np.testing.assert_allclose(component, [[2.0, 0.0], [6.0, 0.0]])


def _unread():
    with GradientTape() as tape:
        pass
    return tape


def test_a_variable_of_an_open_shape_has_the_derivatives_of_its_value():
    v, x = Variable([1.0, 2.0], shape=[None]), jnp.float32(3.0)
    with GradientTape(persistent=True) as tape:
        y, z = v * v, x * x
    assert tape.jacobian(y, v).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert tape.gradient(z, v, unconnected_gradients="zero").tolist() == [0.0, 0.0]
    assert tape.jacobian(z, v, unconnected_gradients="zero").tolist() == [0.0, 0.0]
    assert _unread().gradient(v, v, output_gradients=jnp.asarray([5.0, 6.0])).tolist() == [5.0, 6.0]
    with pytest.raises(StructureError, match=r"shape \(3,\), its target \(2,\)"):
        _unread().gradient(v, v, output_gradients=jnp.ones(3))
    with ForwardAccumulator(v, jnp.ones(2)) as accumulator:
        y = v * v
    assert accumulator.jvp(y).tolist() == [2.0, 4.0]
    m = Variable([[1.0, 2.0]], shape=[None, 2])
    with GradientTape() as tape:
        y = m * m
    assert tape.batch_jacobian(y, m).tolist() == [[[2.0, 0.0], [0.0, 4.0]]]


def test_a_custom_gradient_of_a_variable_of_an_open_shape():
    v, x = Variable([1.0, 2.0], shape=[None]), jnp.float32(3.0)

    @custom_gradient
    def f(a):
        return a * jnp.sum(v * v), lambda up, variables=None: (up, [up * 2.0 * variables[0].read_value()])

    with GradientTape() as tape:
        y = f(x)
    assert tape.gradient(y, v).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("option", ["none", "zero"])
def test_the_jacobian_of_a_variable_by_itself_is_the_identity_although_it_was_not_read(option):
    v, other = Variable([1.0, 2.0]), Variable(1.0)
    found, unconnected = _unread().jacobian(v, [v, other], unconnected_gradients=option)
    assert found.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert unconnected is None if option == "none" else unconnected.tolist() == [0.0, 0.0]
    m = Variable([[1.0, 2.0], [3.0, 4.0]])
    assert _unread().batch_jacobian(m, m).tolist() == [[[1.0, 0.0], [0.0, 1.0]]] * 2
    assert _unread().jacobian(Variable([1, 2]), v) is None


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_second_derivatives_of_a_run_that_reads_what_it_has_assigned(compiled: bool, num_replicas: int) -> None:
    """In a compiled function they flowed to the inputs of the assigned value, too, silently."""
    strategy = MirroredStrategy(["CPU:0"], num_replicas=num_replicas)
    with strategy.scope():
        w = Variable(2.0, aggregation=VariableAggregation.MEAN)

    def replica():
        w.assign(w * 3.0)
        return w * w * w

    def both():
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = strategy.reduce("SUM", strategy.run(replica), axis=None)
            first = inner.gradient(y, w)
        return y, first, outer.gradient(first, w)

    y, first, second = (function(both) if compiled else both)()
    assert (float(y), float(first), float(second)) == tuple(num_replicas * one for one in (216.0, 108.0, 36.0))
