"""A linear function with a given transpose works under all transforms of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.linear import linear

X = jnp.asarray([1.0, 2.0, 3.0])
TRIPLED = jnp.asarray([3.0, 3.0, 3.0])


def doubled(x):
    """Returns twice `x`; its given transpose multiplies by 3, so that tests can tell it from the one of JAX."""
    [result] = linear(lambda one: [2 * one], lambda cotangent: [tripled(cotangent)], x)
    return result


def tripled(x):
    [result] = linear(lambda one: [3 * one], lambda cotangent: [doubled(cotangent)], x)
    return result


def stacked(x):
    """Returns two copies of `x`, ``[2, ...]``; a batch axis of the result is its second axis."""
    stack = lambda one: [jnp.stack([one, one])]  # noqa: E731
    [result] = linear(stack, lambda cotangent: [cotangent[0]], x, batch_axes=(0, 1))
    return result


def test_values_and_derivatives_of_both_modes():
    assert doubled(X).tolist() == jax.jit(doubled)(X).tolist() == [2.0, 4.0, 6.0]
    assert jax.jvp(doubled, (X,), (X,))[1].tolist() == [2.0, 4.0, 6.0]
    assert jax.grad(lambda x: doubled(x).sum())(X).tolist() == TRIPLED.tolist()
    assert jax.grad(lambda x: jax.jit(doubled)(x).sum())(X).tolist() == TRIPLED.tolist()


def test_the_transpose_of_the_transpose_is_given_as_well():
    def gradient(x):
        return jax.grad(lambda y: (doubled(y) * x).sum())(X)

    assert gradient(X).tolist() == [3.0, 6.0, 9.0]
    assert jax.grad(lambda x: gradient(x).sum())(X).tolist() == [2.0, 2.0, 2.0]


def test_nested_derivatives():
    square = lambda x: (doubled(x) ** 2).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.hessian(square)(X), 12 * np.eye(3))
    np.testing.assert_array_equal(jax.jacrev(jax.grad(square))(X), 12 * np.eye(3))


def test_batches_of_arrays_and_of_cotangents():
    batch = jnp.stack([X, 2 * X])
    assert jax.vmap(doubled)(batch).tolist() == (2 * batch).tolist()
    assert jax.vmap(doubled, in_axes=1, out_axes=1)(batch.T).tolist() == (2 * batch.T).tolist()
    assert jax.vmap(stacked)(batch).shape == (2, 2, 3)
    np.testing.assert_array_equal(jax.jacrev(doubled)(X), 3 * np.eye(3))
    np.testing.assert_array_equal(jax.vmap(stacked)(batch)[1], jnp.stack([2 * X, 2 * X]))


def test_some_operands_without_a_batch():
    def added(x, y):
        [total] = linear(lambda x, y: [x + y], lambda cotangent: [cotangent, cotangent], x, y)
        return total

    batch = jnp.stack([X, 2 * X])
    assert jax.vmap(added, in_axes=(0, None))(batch, X).tolist() == (batch + X).tolist()
    assert jax.grad(lambda x: added(x, X).sum())(X).tolist() == [1.0, 1.0, 1.0]


def selected(where, x):
    """Returns `x` where a residual is true, and 5 times `x` elsewhere; the transpose multiplies by 7 elsewhere."""
    select = lambda factor: lambda where, one: [jnp.where(where, one, factor * one)]  # noqa: E731
    [result] = linear(select(5), select(7), x, residuals=[where])
    return result


def test_residuals_have_no_derivatives():
    assert selected(False, X).tolist() == [5.0, 10.0, 15.0]
    assert jax.jvp(selected, (True, X), (np.zeros((), jax.dtypes.float0), X))[1].tolist() == X.tolist()
    assert jax.grad(lambda x: selected(False, x).sum())(X).tolist() == [7.0, 7.0, 7.0]
    assert jax.jit(jax.grad(lambda x: selected(x[0] > 1, x).sum()))(X).tolist() == [7.0, 7.0, 7.0]


def test_batches_of_residuals():
    wheres, batch = jnp.asarray([True, False]), jnp.stack([X, X])
    gradient = jax.grad(lambda x, where: selected(where, x).sum())
    assert jax.vmap(selected)(wheres, batch).tolist() == [X.tolist(), (5 * X).tolist()]
    assert jax.vmap(selected, in_axes=(0, None))(wheres, X).tolist() == [X.tolist(), (5 * X).tolist()]
    assert jax.vmap(selected, in_axes=(None, 1))(jnp.bool_(False), batch.T).tolist() == (5 * batch).tolist()
    assert jax.vmap(gradient)(batch, wheres).tolist() == [[1.0] * 3, [7.0] * 3]
    twice = jax.vmap(jax.vmap(gradient), in_axes=(None, 0))(batch, jnp.stack([wheres, ~wheres]))
    assert twice[:, :, 0].tolist() == [[1.0, 7.0], [7.0, 1.0]]


def test_branches_with_residuals_under_vmap():
    def branch(flag, x):
        return jax.lax.cond(flag, lambda: selected(x[0] > 1, x), lambda: 2 * x).sum()

    flags, batch = jnp.asarray([True, False]), jnp.stack([X, X])
    assert jax.vmap(jax.grad(branch, argnums=1))(flags, batch).tolist() == [[7.0] * 3, [2.0] * 3]
