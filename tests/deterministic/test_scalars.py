"""Programs over scalars, short vectors and the replica id are bit-identical on any number of devices.

LLVM would contract a product and a sum into one operation with a single rounding, or not, depending on the kernel that
contains them. These programs are small enough for one kernel, which slices of per-replica values, stacks of results and
a replica id that is a constant on one device would change.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

ROWS = (np.random.default_rng(0).normal(size=(12, 16, 3)) / 3).astype("f")
REPLICAS = 4


class State:
    """The variables of a program: two mirrored ones, and sync-on-read ones of several shapes and dtypes."""

    def __init__(self) -> None:
        def on_read(value: Any, aggregation: str) -> mr.Variable:
            return mr.Variable(value, trainable=False, synchronization="ON_READ", aggregation=aggregation)

        self.scale = mr.Variable(np.float32(0.5))
        self.weights = mr.Variable(np.array([0.3, 0.2, 0.1], "f"))
        self.optimizer = mr.optimizers.Adam(0.01)
        self.averages = [on_read(np.float32(0), "SUM") for _ in range(3)]
        self.mean = on_read(np.float32(0.1), "MEAN")
        self.vector = on_read(np.full(3, 0.2, "f"), "SUM")
        self.count = on_read(np.int32(1), "SUM")


def bits(program: Callable[[State, jax.Array], Any], devices: int) -> np.ndarray[Any, Any]:
    """All results and states of a few steps, as integers."""
    names = [f"CPU:{i}" for i in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=REPLICAS, deterministic=True)
    with strategy.scope():
        state = State()
    step = mr.function(lambda rows: strategy.run(lambda own: program(state, own), (rows,)))
    found: list[Any] = []
    for rows in strategy.experimental_distribute_dataset(list(ROWS)):
        for result in jax.tree.leaves(step(rows), is_leaf=lambda one: isinstance(one, mr.PerReplica)):
            found += strategy.experimental_local_results(result)
        for variable in (*state.averages, state.mean, state.vector, state.count):
            found += [variable.stored_component(replica) for replica in range(REPLICAS)]
        found += [state.scale.numpy(), state.weights.numpy()]
    return np.concatenate([np.ravel(np.asarray(one, "f")) for one in found]).view(np.uint32)


def replica_id() -> Any:
    return mr.get_replica_context().replica_id_in_sync_group


def averages(state: State, x: jax.Array) -> Any:
    for average in state.averages:
        average.assign(average.value() * 0.99 + x.sum() * 0.01)
    return x.sum() * 0.3


def averages_in_the_loss(state: State, x: jax.Array) -> Any:
    with mr.GradientTape() as tape:
        total = sum(average.value() for average in state.averages)
        loss = mr.losses.average_loss((x[:, 0] - state.scale * 3 * total) ** 2)
    gradient = tape.gradient(loss, state.scale)
    state.optimizer.apply_gradients([(gradient, state.scale)])
    averages(state, x)
    return loss, gradient


def scalar_of_the_replica_id(state: State, x: jax.Array) -> Any:
    number = jnp.asarray(replica_id()).astype("float32")
    y = x.sum() * 0.3 + number * 0.7
    state.mean.assign(y * 0.11 + state.mean.value() * 0.9)
    return y * 0.13 + state.scale * number


def vector_of_the_replica_id(state: State, x: jax.Array) -> Any:
    number = jnp.asarray(replica_id()).astype("float32")
    y = x.mean(0) * 0.3 + number * 0.7 * state.weights
    state.vector.assign(state.vector.value() * 0.9 + y * 0.1 * number)
    return y * number + state.weights * 0.3


def counted_mean(state: State, x: jax.Array) -> Any:
    state.count.assign(state.count.value() + 1)
    count = state.count.value().astype("float32")
    state.mean.assign(state.mean.value() * (1 - 1 / count) + x.sum() * (1 / count))
    return state.mean.value() * count * 0.3 + x.sum() * 0.2


def gathered(state: State, x: jax.Array) -> Any:
    everywhere = mr.get_replica_context().all_gather(x, 0)
    state.mean.assign(state.mean.value() * 0.9 + everywhere.sum() * 0.03 * x.sum())
    return everywhere[replica_id()] * 0.3 + x[0] * 0.7


def gathered_along_another_axis(state: State, x: jax.Array) -> Any:
    everywhere = mr.get_replica_context().all_gather(x * 0.7 + x[0] * 0.2, 1)
    state.vector.assign(state.vector.value() * 0.9 + everywhere[0, 1:4] * 0.1 + x[1] * 0.3)
    return everywhere[:, replica_id()] * 0.3 + x[:, 0] * 0.7


def gradient_of_gathered(state: State, x: jax.Array) -> Any:
    def loss(weights: Any) -> Any:
        mine = (x * weights).sum(-1)
        everywhere = mr.get_replica_context().all_gather(mine, 0)
        return (everywhere[replica_id()] * 0.3 + mine[0] * 0.7 - everywhere.mean() * 0.1) ** 2

    with mr.GradientTape() as tape:
        value = loss(state.weights)
    gradient = tape.gradient(value, state.weights)
    state.optimizer.apply_gradients([(gradient, state.weights)])
    other, transformed = jax.value_and_grad(loss)(state.weights.value())
    state.vector.assign(state.vector.value() * 0.9 + transformed * 0.1)
    return value * 0.3 + other * 0.1


def branch_on_the_replica_id(state: State, x: jax.Array) -> Any:
    total = x.sum()
    y = jax.lax.cond(
        replica_id() % 2 == 0, lambda: total * 0.3 + state.scale * 0.2, lambda: total * 0.1 - state.scale * 0.7
    )
    state.mean.assign(state.mean.value() * 0.9 + y * 0.1)
    return y * 0.3 + total * 0.1


def noise(state: State, x: jax.Array) -> Any:
    drawn = jax.random.normal(jax.random.fold_in(jax.random.key(3), replica_id()), (3,))
    state.vector.assign(state.vector.value() * 0.9 + drawn * 0.1)
    return drawn * 0.3 + x[0] * 0.2


def training(state: State, x: jax.Array) -> Any:
    number = jnp.asarray(replica_id()).astype("float32")
    with mr.GradientTape() as tape:
        predictions = (x * state.weights).sum(-1) * (1 + number * 0.1) + state.scale * state.mean.value()
        loss = mr.losses.average_loss((predictions - 0.3) ** 2)
    gradients = tape.gradient(loss, [state.scale, state.weights])
    state.optimizer.apply_gradients(zip(gradients, [state.scale, state.weights], strict=True))
    state.mean.assign(state.mean.value() * 0.9 + loss * 0.1 * number)
    return loss * 0.3 + gradients[0] * 0.1


PROGRAMS = [
    averages,
    averages_in_the_loss,
    scalar_of_the_replica_id,
    vector_of_the_replica_id,
    counted_mean,
    gathered,
    gathered_along_another_axis,
    gradient_of_gathered,
    branch_on_the_replica_id,
    noise,
    training,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.first(1)
def test_a_small_program_has_the_same_bits_on_any_number_of_devices(program: Callable[..., Any]) -> None:
    alone = bits(program, 1)
    for devices in (2, 4):
        np.testing.assert_array_equal(bits(program, devices), alone)


def drawn_expression(draw: random.Random, leaves: Any, depth: int) -> Any:
    if not depth:
        return draw.choice(leaves)()
    first, second = drawn_expression(draw, leaves, depth - 1), drawn_expression(draw, leaves, depth - 1)
    factors = draw.uniform(0.1, 1), draw.uniform(0.1, 1)
    sum_of_products = first * factors[0] + second * factors[1]
    kinds = [
        sum_of_products,
        first * second,
        first - second * factors[0],
        jnp.tanh(first),
        first.sum() * 0.3 + first,
        first / (1 + jnp.abs(second)),
        jnp.exp(-first * first) * 0.5,
    ]
    return draw.choice([sum_of_products, sum_of_products, *kinds])


def drawn(seed: int) -> Callable[[State, jax.Array], Any]:
    """A random program: expressions over a replica's rows, its id and its state train, and update the state."""

    def program(state: State, x: jax.Array) -> Any:
        draw = random.Random(seed)
        number = jnp.asarray(replica_id()).astype("float32") * 0.25
        scalars = [x.sum, state.mean.value, state.scale.read_value, lambda: number, lambda: jnp.float32(0.7)]
        vectors = [lambda: x.mean(0), state.vector.value, state.weights.read_value, lambda: x[0], lambda: x[1]]

        def expression(leaves: Any) -> Any:
            return drawn_expression(draw, leaves, 2)

        with mr.GradientTape() as tape:
            losses = (expression(scalars) + (x * expression(vectors)).sum(-1)) ** 2
            loss = mr.losses.average_loss(losses)
        variables = [state.scale, state.weights]
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        given = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if given:
            state.optimizer.apply_gradients(given)
        state.mean.assign(jnp.tanh(jnp.sum(expression(scalars))))
        state.vector.assign(jnp.tanh(expression(vectors) * jnp.ones(3)))
        return expression(scalars), expression(vectors)

    return program


SEEDS = {seed: [pytest.mark.slow] for seed in range(20, 60)} | {seed: [] for seed in (1, 3, 8)}


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=marks) for seed, marks in SEEDS.items()])
@pytest.mark.long
def test_a_random_program_has_the_same_bits_on_any_number_of_devices(seed: int) -> None:
    np.testing.assert_array_equal(bits(drawn(seed), 2 + 2 * (seed % 2)), bits(drawn(seed), 1))
