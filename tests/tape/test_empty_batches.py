"""An empty per-replica batch has gradients for the same variables as others: zeros, not None."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import mirrored as mr


def convolved(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, cotangent: (2 * cotangent,))


@pytest.mark.first(1)
@pytest.mark.parametrize("convolution", [convolved, jax.jit(convolved)], ids=["primitive", "jitted"])
@pytest.mark.parametrize("examples", [0, 2])
def test_the_same_variables_have_gradients(convolution: Any, examples: int) -> None:
    kernel, bias = mr.Variable(jnp.ones((3, 3, 1, 4))), mr.Variable(jnp.ones(4))
    unused, stopped, number = mr.Variable(1.0), mr.Variable(1.0), mr.Variable(2)
    with mr.GradientTape() as tape:
        h = doubled(jax.nn.relu(convolution(jnp.ones((examples, 4, 4, 1)), kernel.read_value()) + bias))
        loss = jnp.sum(h) + jnp.sum(h) * lax.stop_gradient(stopped) * number
    gradients = tape.gradient(loss, [kernel, bias, unused, stopped, number])
    assert [gradient is None for gradient in gradients] == [False, False, True, True, True]
    assert [gradient.shape for gradient in gradients[:2]] == [(3, 3, 1, 4), (4,)]
    assert all(bool(jnp.all(gradient == 0)) == (examples == 0) for gradient in gradients[:2])


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_replica_without_examples_takes_part_in_the_update(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        kernel = mr.Variable(jnp.ones((3, 3, 1, 2)))
        optimizer = mr.optimizers.SGD(0.5)
    shares = mr.PerReplica((jnp.ones((1, 4, 4, 1)), jnp.ones((0, 4, 4, 1))))

    def replica_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = jnp.sum(convolved(x, kernel.read_value()))
        optimizer.apply_gradients(zip(tape.gradient(loss, [kernel]), [kernel], strict=True))

    def step(x: Any) -> None:
        strategy.run(replica_step, args=(x,))

    expected = kernel.numpy() - 0.5 * jax.grad(lambda k: jnp.sum(convolved(jnp.ones((1, 4, 4, 1)), k)))(kernel.numpy())
    with strategy.scope():
        (mr.function(step) if compiled else step)(shares)
    assert jnp.allclose(kernel.numpy(), expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "look_up",
    [
        lambda table, ids: table[ids],
        lambda table, ids: jnp.take(table, ids, axis=0),
        lambda table, ids: table.at[ids].get(),
        lambda table, ids: table.at[ids].get(mode="fill", fill_value=0.0),
        lambda table, ids: jax.jit(lambda ids: table.at[ids].get())(ids),
        lambda table, ids: jax.jit(lambda ids: table[ids])(ids),
        lambda table, ids: jax.jit(lambda table, ids: table[ids])(table, ids),
        lambda table, ids: table[0:0],
    ],
    ids=[
        "index",
        "take",
        "at",
        "at, filled",
        "at in jit",
        "index in jit",
        "argument of jit",
        "slice",
    ],
)
def test_an_empty_index_has_a_gradient_of_zeros(look_up: Any, compiled: bool) -> None:
    table = mr.Variable(jnp.ones((3, 2)))

    def step(ids: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = jnp.sum(2.0 * look_up(table.read_value(), ids))
        return tape.gradient(loss, table)

    gradient = (mr.function(step) if compiled else step)(jnp.zeros((0,), jnp.int32))
    assert gradient.tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("look_up", [lambda a, ids: a[ids], lambda a, ids: a.at[ids].get()], ids=["index", "at"])
def test_an_empty_index_into_a_result_has_a_gradient_of_zeros(look_up: Any) -> None:
    table, ids = mr.Variable(jnp.ones((3, 2))), jnp.zeros((0,), jnp.int32)
    with mr.GradientTape() as tape:
        loss = jnp.sum(look_up(2.0 * table.read_value(), ids))
    assert tape.gradient(loss, table).tolist() == [[0.0, 0.0]] * 3
