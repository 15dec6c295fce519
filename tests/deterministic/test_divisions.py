"""Division by or of a value that the replicas share has the same bits on any number of devices.

XLA replaces a division by a product with the inverse if the divisor has no other user, which depends on the number of
replicas per device. It computes a quotient of two constants, and replaces other divisions by a constant by a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

X = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
VECTOR = np.linspace(0.3, 1.7, 32).astype(np.float32)


def by_an_argument(strategy: Any) -> Any:
    (batch,) = strategy.distribute_dataset([X])

    @mr.function
    def divided(x: Any, t: Any) -> Any:
        return strategy.gather(strategy.run(lambda x, t: x / t, args=(x, t)), axis=0)

    return divided(batch, jnp.float32(1.7))


def by_a_captured_vector(strategy: Any) -> Any:
    (batch,) = strategy.distribute_dataset([X])

    @mr.function
    def divided(x: Any, t: Any) -> Any:
        return strategy.gather(strategy.run(lambda x: x / t, args=(x,)), axis=0)

    return divided(batch, VECTOR)


def by_a_variable(strategy: Any) -> Any:
    with strategy.scope():
        w = mr.Variable(np.linspace(-1, 1, 160).astype(np.float32).reshape(32, 5))
        std = mr.Variable(1.7, trainable=False)
        optimizer = mr.optimizers.SGD(0.1)

    @mr.function
    def step(x: Any) -> Any:
        def replica_step(x: Any) -> Any:
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss(-jax.nn.log_softmax((x / std) @ w)[:, 1])
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    for batch in strategy.distribute_dataset([X] * 3):
        step(batch)
    return w.numpy()


def by_a_sum_over_replicas(strategy: Any) -> Any:
    (batch,) = strategy.distribute_dataset([X])

    @mr.function
    def centered(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            context = mr.get_replica_context()
            assert context is not None
            total, count = context.all_reduce("SUM", (x.sum(0), jnp.float32(x.shape[0] * 1.7)))
            return x - total / count

        return strategy.gather(strategy.run(replica_fn, args=(x,)), axis=0)

    return centered(batch)


def by_a_count_outside_of_a_run(strategy: Any) -> Any:
    options = {"synchronization": "ON_READ", "aggregation": "SUM"}
    with strategy.scope():
        sums, squares, count = (mr.Variable(np.zeros(shape, np.float32), **options) for shape in (32, 32, ()))

    def replica_fn(x: Any) -> None:
        sums.assign_add(x[0])
        squares.assign_add(x[0] ** 2)
        count.assign_add(3.0)

    for batch in strategy.distribute_dataset([X]):
        mr.function(lambda x: strategy.run(replica_fn, args=(x,)))(batch)

    @mr.function
    def moments() -> Any:
        return sums.read_value() / count.read_value(), squares.read_value() / count.read_value()

    return jnp.stack(moments())


@jax.jit
def quotient(a: Any, b: Any) -> Any:
    return a / b


@jax.jit
def quotient_by_the_next(a: Any, b: Any) -> Any:
    return quotient(a, b + 1.0)


def by_an_argument_of_a_nested_function(strategy: Any) -> Any:
    (batch,) = strategy.distribute_dataset([X])

    @mr.function
    def divided(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            return x * sum(function(jnp.full_like(x, 8.5), uniform(x)) for function in (quotient, quotient_by_the_next))

        def uniform(x: Any) -> Any:
            return jnp.log1p(jnp.full_like(x, 0.133)) + 2.0

        return strategy.gather(strategy.run(replica_fn, args=(x,)), axis=0)

    return divided(batch)


def by_roots_of_sums(strategy: Any) -> Any:
    """As the updates of RMSprop and Adagrad, whose operations XLA sees earlier on a device with one replica."""
    (batch,) = strategy.distribute_dataset([X])

    @mr.function
    def scaled(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            context = mr.get_replica_context()
            assert context is not None
            total, found = context.all_reduce("SUM", x.sum(0)), []
            for length in (0, 3, 30, 100):  # operations between the sum and the division
                square = total * total
                for step in range(length):
                    square = square + jnp.float32(step) * total * total
                found += [total / jnp.sqrt(square + 1e-7), total[0] / jnp.sqrt(square[1] + 1e-7) + total]
            return jnp.stack(found)[None]

        return strategy.gather(strategy.run(replica_fn, args=(x,)), axis=0)

    return scaled(batch)


PROGRAMS = [
    by_roots_of_sums,
    by_an_argument,
    by_a_captured_vector,
    by_a_variable,
    by_a_sum_over_replicas,
    by_a_count_outside_of_a_run,
    by_an_argument_of_a_nested_function,
]


@pytest.mark.first(1)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_division_has_the_same_bits_on_any_number_of_devices(program: Callable[[Any], Any]) -> None:
    def bits(devices: int) -> bytes:
        names = [f"CPU:{index}" for index in range(devices)]
        return np.asarray(program(mr.MirroredStrategy(names, num_replicas=4, deterministic=True))).tobytes()

    one = bits(1)
    assert [devices for devices in (2, 3, 4) if bits(devices) != one] == []


# Functions of an array over which the replica function closes, a constant of the program.

REPLICAS = 6
_random = np.random.default_rng(0)
ROWS = np.abs(_random.normal(size=(2 * REPLICAS, 5))).astype(np.float32) + 0.3
SCALE = jnp.asarray(np.abs(_random.normal(size=5)).astype(np.float32)) + 0.2
WEIGHT = jnp.asarray(np.abs(_random.normal(size=5)).astype(np.float32)) + 0.1


def gradient(x: Any, w: Any) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(w)
        y = jnp.sin(x * w).mean(0)
    return tape.gradient(y, w, output_gradients=SCALE / 6)


OF_A_CONSTANT: dict[str, Callable[[Any, Any], Any]] = {
    "c / 6": lambda x, w: SCALE / 6 + 0 * x,
    "c / 6 * x": lambda x, w: SCALE / 6 * x,
    "affine": lambda x, w: ((SCALE * 2 + 1) / 3 * jnp.cos(x * w)).sum(0),
    "jit": lambda x, w: jax.jit(lambda one: one / 7 * x)(SCALE),
    "scan": lambda x, w: jax.lax.scan(lambda c, row: (c + SCALE / 6 * row, None), w, x)[0],
    "fori_loop": lambda x, w: jax.lax.fori_loop(0, 3, lambda i, c: c / SCALE + SCALE / 3, x),
    "cond": lambda x, w: jax.lax.cond(x.sum() > 0, lambda a: a * SCALE / 3, lambda a: a, x),
    "tape": gradient,
    "grad": lambda x, w: jax.grad(lambda w: (x / (w * SCALE) / 3).sum())(w),
    "c / x / 3": lambda x, w: SCALE / x / 3,
    "c / (x / 3)": lambda x, w: SCALE / (x / 3),
    "x / exp(c)": lambda x, w: x / jnp.exp(SCALE),
    "x / c ** 2.5": lambda x, w: x / SCALE**2.5,
    "x ** c": lambda x, w: x**SCALE,
    "x / sqrt(c)": lambda x, w: x / jnp.sqrt(SCALE),
    "standardized": lambda x, w: (x - SCALE.mean()) / SCALE.std(),
    "softmax": lambda x, w: x / jax.nn.softmax(SCALE),
    "logsumexp": lambda x, w: jax.nn.logsumexp(SCALE) * x,
    "cumsum": lambda x, w: jnp.cumsum(SCALE) / SCALE.sum() * x,
    "positions": lambda x, w: jnp.sin(x / 10000 ** (jnp.arange(5) / 5.0)),
    "bfloat16": lambda x, w: (SCALE.astype(jnp.bfloat16) / 3).astype(jnp.float32) * x,
    "complex": lambda x, w: jnp.abs((SCALE + 1j * SCALE) / 3) * x,
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", OF_A_CONSTANT)
def test_a_function_of_a_constant_has_the_same_bits_on_any_number_of_devices(name: str) -> None:
    def bits(devices: int) -> list[bytes]:
        strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, deterministic=True)
        batch = strategy.experimental_distribute_values_from_function(
            lambda context: ROWS[2 * context.replica_id_in_sync_group :][:2]
        )
        step = mr.function(lambda w: strategy.run(OF_A_CONSTANT[name], args=(batch, w)))
        return [np.asarray(one).tobytes() for one in strategy.local_results(step(WEIGHT))]

    expected = bits(1)
    assert [bits(devices) == expected for devices in (2, 3, 4)] == [True] * 3
