"""Training on N replicas gives the losses and weights of a plain JAX loop on one device."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.data import InputOptions
from mirrored.losses import average_loss
from mirrored.optimizers import Momentum
from mirrored.testing.parity import assert_close_by_norm
from parity.programs import PROGRAMS, Program

pytestmark = pytest.mark.timeout(240)

RATE = 0.05
EVEN = [16] * 10
UNEVEN = [16, 16, 16, 16, 13, 16, 16, 16, 16, 5]


@functools.lru_cache
def _reference(name: str, sizes: tuple[int, ...], steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """The plain loop: `jax.value_and_grad`, optax, one device."""
    program = PROGRAMS[name]
    transform = optax.sgd(RATE, 0.9)
    parameters = {key: jnp.asarray(value) for key, value in program.start().items()}
    state = transform.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean(program.losses(p, x, y)))(parameters)
        updates, state = transform.update(gradients, state, parameters)
        return loss, optax.apply_updates(parameters, updates), state

    losses = []
    batches = program.batches(list(sizes))
    for k in range(steps):
        loss, parameters, state = step(parameters, state, *batches[k % len(batches)])
        losses.append(float(loss))
    return losses, {key: np.asarray(value) for key, value in parameters.items()}


def _train(way: Any, program: Program, sizes: list[int], steps: int, last_batch: str) -> tuple[list[float], Any]:
    strategy = way.strategy
    with strategy.scope():
        variables = {name: mr.Variable(value, name=name) for name, value in program.start().items()}
        optimizer = Momentum(RATE, 0.9)
    ordered = list(variables.values())

    def replica_step(batch: Any, mask: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = average_loss(program.losses(variables, *batch), mask)
        optimizer.apply_gradients(zip(tape.gradient(loss, ordered), ordered, strict=True))
        return loss

    @way.compile
    def step(batch: Any, mask: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch, mask)), axis=None)

    options = InputOptions(last_batch=last_batch, prefetch=0)
    batches = list(strategy.experimental_distribute_dataset(program.batches(sizes), options))
    masked = batches if last_batch == "pad" else [(batch, None) for batch in batches]
    losses = [step(*masked[k % len(masked)]) for k in range(steps)]
    return [float(loss) for loss in losses], {name: variable.numpy() for name, variable in variables.items()}


def _assert_same_training(way: Any, name: str, sizes: list[int], steps: int, last_batch: str = "split") -> None:
    losses, weights = _train(way, PROGRAMS[name], sizes, steps, last_batch)
    expected_losses, expected_weights = _reference(name, tuple(sizes), steps)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    assert expected_losses[-1] != expected_losses[0]
    assert_close_by_norm(weights, expected_weights, 1e-6)


@pytest.mark.ways(modes=("compiled", "folded"))
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(10)
@pytest.mark.first(1)
def test_50_compiled_steps(way, name):
    _assert_same_training(way, name, EVEN, 50)


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(2, 8))
@pytest.mark.parametrize("name", ["mlp", "lstm"])
@pytest.mark.sampled(4)
@pytest.mark.first(1)
def test_50_compiled_steps_with_uneven_batches_padded(way, name):
    """The shares of a padded batch hold different numbers of real examples; some hold none."""
    _assert_same_training(way, name, UNEVEN, 50, "pad")


@pytest.mark.ways(modes=("compiled",), replicas=(2,))
@pytest.mark.long
def test_50_compiled_steps_with_uneven_batches(way):
    """Shares of different shapes cannot be one program: those steps run eagerly in between."""
    _assert_same_training(way, "mlp", UNEVEN, 50)


@pytest.mark.ways(modes=("eager",), replicas=(2,))
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
@pytest.mark.first(1)
@pytest.mark.long
def test_a_few_eager_steps(way, name):
    _assert_same_training(way, name, [16, 5], 2)


@pytest.mark.slow
@pytest.mark.ways(modes=("eager",))
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.timeout(900)
def test_50_eager_steps(way, name, sizes):
    _assert_same_training(way, name, sizes, 50)


@pytest.mark.slow
@pytest.mark.ways(modes=("compiled", "folded"))
@pytest.mark.parametrize("last_batch", ["split", "pad"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.timeout(900)
def test_50_compiled_steps_with_uneven_batches_everywhere(way, name, last_batch):
    _assert_same_training(way, name, UNEVEN, 50, last_batch)
