"""Jacobians and batch Jacobians."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError, ArgumentTypeError, TapeError
from mirrored.tape import GradientTape

X = np.array([0.5, -1.0, 2.0], np.float32)


def network(x):
    return jnp.tanh(jnp.outer(x, x) @ jnp.linspace(-1, 1, 6).reshape(3, 2)) * x[:, None]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("use_pfor", [False, True])
@pytest.mark.first(2)
def test_jacobian_is_that_of_jax(compiled, use_pfor):
    def jacobian(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = network(x)
        return tape.jacobian(y, x, experimental_use_pfor=use_pfor, parallel_iterations=2)

    x = jnp.asarray(X)
    result = (jax.jit(jacobian) if compiled else jacobian)(x)
    assert result.shape == (3, 2, 3)
    np.testing.assert_allclose(result, jax.jacobian(network)(x), rtol=1e-5, atol=1e-6)


def test_structure_and_unconnected_sources():
    x, w = jnp.array([1.0, 2.0]), jnp.array([[1.0, 2.0, 3.0]])
    with GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        y = x * x * jnp.array([3.0, 4.0])
        s = jnp.sum(x**2)
    assert tape.jacobian(y, x).tolist() == [[6.0, 0.0], [0.0, 16.0]]
    assert tape.jacobian(s, x).tolist() == [2.0, 4.0]
    assert tape.jacobian(y, w) is None
    assert tape.jacobian(y, w, unconnected_gradients="zero").shape == (2, 1, 3)
    both = tape.jacobian(y, {"a": x, "b": [w]})
    assert both["b"] == [None]
    assert both["a"].tolist() == [[6.0, 0.0], [0.0, 16.0]]


@pytest.mark.long
def test_jacobian_of_a_gradient():
    x = jnp.asarray(X)
    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape() as inner:
            inner.watch(x)
            y = jnp.sum(jnp.sin(x) * x[::-1])
        slope = inner.gradient(y, x)
    expected = jax.hessian(lambda x: jnp.sum(jnp.sin(x) * x[::-1]))(x)
    np.testing.assert_allclose(outer.jacobian(slope, x), expected, rtol=1e-5, atol=1e-6)


def test_gradient_through_a_jacobian():
    x = jnp.asarray(X)
    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape() as inner:
            inner.watch(x)
            y = x**3
        total = jnp.sum(inner.jacobian(y, x))
    np.testing.assert_allclose(outer.gradient(total, x), 6 * X, rtol=1e-5)


def test_jacobian_through_control_flow_and_lookups():
    table = jnp.asarray(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))

    def function(table):
        rows = table[jnp.array([0, 2, 0])]
        return jax.lax.scan(lambda c, r: (c * r, c + r), jnp.ones(2), rows)[1]

    with GradientTape() as tape:
        tape.watch(table)
        y = function(table)
    np.testing.assert_allclose(tape.jacobian(y, table), jax.jacobian(function)(table), rtol=1e-5, atol=1e-6)


def test_zero_size_target():
    x = jnp.ones(2)
    with GradientTape() as tape:
        tape.watch(x)
        y = (x * 2.0)[:0]
    assert tape.jacobian(y, x).shape == (0, 2)


def test_jacobian_uses_up_a_plain_tape_and_wants_one_array():
    x = jnp.array([1.0, 2.0])
    with GradientTape() as tape:
        tape.watch(x)
        y = x * x
    with pytest.raises(ArgumentTypeError, match="the target is of type 'list'"):
        tape.jacobian([y, y], x)
    tape.jacobian(y, x)
    with pytest.raises(TapeError, match="second set of gradients"):
        tape.jacobian(y, x)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.long
def test_batch_jacobian(compiled):
    def jacobians(x):
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x * x
            z = (x @ jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])) * x[:, :1]
        return tape.batch_jacobian(y, x), tape.batch_jacobian(z, x, experimental_use_pfor=False)

    first, second = (jax.jit(jacobians) if compiled else jacobians)(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    assert first.tolist() == [[[3.0, 0.0], [0.0, 12.0]], [[27.0, 0.0], [0.0, 48.0]]]
    assert second.tolist() == [[[10.0, 4.0], [14.0, 5.0], [18.0, 6.0]], [[22.0, 12.0], [32.0, 15.0], [42.0, 18.0]]]


def test_batch_jacobian_of_higher_rank():
    x = jnp.arange(1.0, 5.0).reshape(2, 2, 1)
    with GradientTape() as tape:
        tape.watch(x)
        y = 2.0 * x.reshape(2, 2, 1, 1) ** 2
    result = tape.batch_jacobian(y, x)
    assert result.shape == (2, 2, 1, 1, 2, 1)
    assert result[:, :, 0, 0, :, 0].tolist() == [[[4.0, 0.0], [0.0, 8.0]], [[12.0, 0.0], [0.0, 16.0]]]


def test_batch_jacobian_of_something_unconnected_is_zero():
    x = jnp.ones([2, 2])
    with GradientTape() as tape:
        tape.watch(x)
        y = jnp.ones([2, 3])
    result = tape.batch_jacobian(y, x)
    assert result.dtype == x.dtype
    assert result.tolist() == np.zeros((2, 3, 2)).tolist()


def test_batch_jacobian_checks_shapes():
    x = jnp.ones([2, 2])
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        longer, flat = jnp.concatenate([x, x]), jnp.sum(x, 1)
    with pytest.raises(ArgumentError, match="Need first dimension of target shape and source shape to match"):
        tape.batch_jacobian(longer, x)
    with pytest.raises(ValueError, match=r"Shape \(2,\) must have rank at least 2"):
        tape.batch_jacobian(flat, x)
    with pytest.raises(ValueError, match=r"for the source, Shape \(2,\) must have rank"):
        tape.batch_jacobian(x, flat)


@pytest.mark.parametrize("form", ["compiled", "rows", "vectorized"])
def test_the_jacobian_of_a_run_on_several_devices(form):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable([1.0, 2.0])

    def jacobian():
        with GradientTape() as tape:
            y = strategy.reduce("SUM", strategy.run(lambda: v * v), axis=None)
        return tape.jacobian(y, v, experimental_use_pfor=form != "rows")

    if form == "vectorized":
        with pytest.raises(TapeError, match="experimental_use_pfor=False"):
            jacobian()
        return
    found = (mr.function(jacobian) if form == "compiled" else jacobian)()
    np.testing.assert_array_equal(found, [[4.0, 0.0], [0.0, 8.0]])


def test_the_error_in_a_compiled_step_on_an_uneven_batch_names_a_remedy_that_works():
    """It advised to compile the step, which was compiled."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(jnp.ones(2))
    data = mr.data.Dataset.from_tensor_slices(jnp.ones((5, 2))).batch(5)
    batch = next(iter(strategy.experimental_distribute_dataset(data)))

    def step(batch, use_pfor):
        with mr.GradientTape() as tape:
            y = strategy.reduce("SUM", strategy.run(lambda x: (x * v).sum(0), args=(batch,)), axis=None)
        return tape.jacobian(y, v, experimental_use_pfor=use_pfor)

    compiled = mr.function(step)
    with pytest.raises(TapeError, match=r"experimental_use_pfor=False(.|\n)*equal shapes \(last_batch='pad'"):
        compiled(batch, True)
    assert compiled(batch, False).tolist() == [[5.0, 0.0], [0.0, 5.0]]
