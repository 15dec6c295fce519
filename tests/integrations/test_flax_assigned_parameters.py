"""Layers of NNX that assign their parameters under a tape: `nnx.WeightNorm` and `nnx.SpectralNorm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr
from mirrored.integrations.flax.holding import held

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
RATE, STEPS = 0.1, 3
LAYERS: dict[str, Callable[[], Any]] = {
    "WeightNorm": lambda: nnx.WeightNorm(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1)),
    "SpectralNorm": lambda: nnx.SpectralNorm(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1)),
}
layers = pytest.mark.parametrize("layer", list(LAYERS))


def loss_of(model: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(model(x)) ** 2, axis=1)


def values(state: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return [np.asarray(leaf[...] if isinstance(leaf, nnx.Variable) else leaf) for leaf in leaves]


def assert_equal(state: Any, expected: Any) -> None:
    got, want = values(state), values(expected)
    assert len(got) == len(want) >= 2
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def trained_by_nnx(layer: str) -> Any:
    model = LAYERS[layer]()
    optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)
    for _ in range(STEPS):
        optimizer.update(model, nnx.grad(lambda m: jnp.mean(loss_of(m, X)))(model))
    return nnx.state(model)


@layers
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("replicas", "on"), [(1, 1), (2, 2), (4, 2)], ids=["1on1", "2on2", "4on2"])
@pytest.mark.first(1)
@pytest.mark.long
def test_training_has_the_values_of_nnx(layer: str, compiled: bool, replicas: int, on: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:on], num_replicas=replicas)
    with strategy.scope():
        model = LAYERS[layer]()
        optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)

    def replica_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(loss_of(model, x))
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))

    def step(x: Any) -> None:
        strategy.run(replica_step, args=(x,))

    dataset = strategy.experimental_distribute_dataset(
        mr.data.Dataset.from_tensor_slices(X).batch(len(X)).repeat(STEPS)
    )
    step = mr.function(step) if compiled else step
    for batch in dataset:
        step(batch)
    assert_equal(nnx.state(model), trained_by_nnx(layer))


def inside(model: Any, around: Callable[..., Any]) -> Any:
    def gradient(x: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = jnp.mean(loss_of(model, x))
        return tape.gradient(loss, nnx.state(model, nnx.Param))

    return around(gradient)(X)


def outside(model: Any, around: Callable[..., Any]) -> Any:
    with mr.GradientTape() as tape:
        loss = around(lambda x: jnp.mean(loss_of(model, x)))(X)  # That of replica 0: all have the whole batch.
    return tape.gradient(loss, nnx.state(model, nnx.Param))


@layers
@pytest.mark.parametrize("tape", [inside, outside])
@pytest.mark.parametrize("how", ["eager", "function", "run", "function in run", "run in function"])
@pytest.mark.first(1)
def test_a_tape_has_the_gradients_of_nnx(layer: str, how: str, tape: Callable[..., Any]) -> None:
    reference = LAYERS[layer]()
    expected = nnx.grad(lambda m: jnp.mean(loss_of(m, X)))(reference)
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        model = LAYERS[layer]()

    def run(step: Callable[..., Any]) -> Callable[..., Any]:
        def running(x: Any) -> Any:
            return strategy.experimental_local_results(strategy.run(step, args=(x,)))[0]

        return running

    around: Callable[[Any], Any] = {
        "eager": lambda step: step,
        "function": mr.function,
        "run": run,
        "function in run": lambda step: run(mr.function(step)),
        "run in function": lambda step: mr.function(run(step)),
    }[how]
    assert_equal(tape(model, around), expected)
    assert_equal(nnx.state(model, nnx.Param), nnx.state(reference, nnx.Param))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.long
def test_updates_of_an_optimizer_are_not_differentiated(compiled: bool) -> None:
    """A persistent tape over several steps has the gradient of each step with respect to its own parameters."""
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    with strategy.scope():
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)

    def steps() -> Any:
        return strategy.run(replica_steps)

    def replica_steps() -> Any:
        with mr.GradientTape(persistent=True) as tape:
            for _ in range(STEPS):
                loss = jnp.mean(loss_of(model, X))
                gradients = tape.gradient(loss, nnx.state(model, nnx.Param))
                optimizer.update(model, gradients)
        return gradients

    reference = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    other = nnx.Optimizer(reference, optax.sgd(RATE), wrt=nnx.Param)
    for _ in range(STEPS):
        expected = nnx.grad(lambda m: jnp.mean(loss_of(m, X)))(reference)
        other.update(reference, expected)
    got = (mr.function(steps) if compiled else steps)()
    for one, want in zip(values(got), values(expected), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-6)


def two_parameters() -> tuple[Any, Any, list[Any], mr.MirroredStrategy]:
    """Returns parameters of values 3 and 1, and the variables behind them."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        first, second = nnx.Param(jnp.array(3.0)), nnx.Param(jnp.array(1.0))
    return first, second, [held(first), held(second)], strategy


def numbers(gradients: list[Any]) -> list[float | None]:
    return [None if one is None else float(one) for one in gradients]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("later", ["assign", "update"])
def test_a_later_assignment_ends_the_derivative(later: str, compiled: bool) -> None:
    first, second, variables, _ = two_parameters()
    optimizer = mr.optimizers.SGD(1.0)

    def forward() -> Any:
        second.set_value(first.get_value() * 2)
        if later == "assign":
            variables[1].assign(5.0)
        else:
            optimizer.apply_gradients([(jnp.array(1.0), variables[1])])
        return second.get_value() ** 2

    def inside() -> Any:
        with mr.GradientTape() as tape:
            loss = forward()
        return tape.gradient(loss, variables, unconnected_gradients="zero")

    with mr.GradientTape() as tape:
        loss = (mr.function(forward) if compiled else forward)()
    assert numbers(tape.gradient(loss, variables)) == [None, 10.0]
    assert numbers((mr.function(inside) if compiled else inside)()) == [0.0, 10.0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_assignment_while_the_tape_stands_still_ends_the_derivative(compiled: bool) -> None:
    first, second, variables, _ = two_parameters()

    def inside() -> Any:
        with mr.GradientTape() as tape:
            second.set_value(first.get_value() * 2)
            with tape.stop_recording():
                second.set_value(first.get_value() * 3)
            loss = second.get_value() ** 2
        return tape.gradient(loss, variables, unconnected_gradients="zero")

    assert numbers((mr.function(inside) if compiled else inside)()) == [0.0, 18.0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_derivative_reaches_the_next_run_and_code_after_it(compiled: bool) -> None:
    first, second, variables, strategy = two_parameters()

    def forward() -> Any:
        strategy.run(lambda: second.set_value(first.get_value() * 2))
        return strategy.reduce("MEAN", strategy.run(lambda: second.get_value() ** 2), axis=None)

    with mr.GradientTape(persistent=True) as tape:
        loss = (mr.function(forward) if compiled else forward)()
        after = second.get_value() ** 2
    assert numbers(tape.gradient(loss, variables)) == numbers(tape.gradient(after, variables)) == [24.0, None]


def test_a_derivative_reaches_the_next_of_several_steps_per_call() -> None:
    first, second, variables, _ = two_parameters()

    def step(x: Any) -> Any:
        loss = second.get_value() ** 2 * x
        second.set_value(first.get_value() * 2)
        return loss

    with mr.GradientTape() as tape:
        loss = mr.function(step, steps_per_call=2)([(jnp.array(1.0),)] * 2)[1]
    assert numbers(tape.gradient(loss, variables, unconnected_gradients="zero")) == [24.0, 0.0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("has_gradient", [False, True], ids=["plain", "custom gradient"])
def test_a_function_with_a_custom_gradient_reads_the_assigned_value(has_gradient: bool, compiled: bool) -> None:
    first, second, variables, _ = two_parameters()

    @mr.custom_gradient
    def scaled(x: Any) -> Any:
        value = second.get_value()

        def gradient(upstream: Any, variables: Any = None) -> Any:
            return upstream * value**2, [2.0 * upstream * x * value]

        return x * value**2, gradient

    def step() -> Any:
        with mr.GradientTape() as tape:
            second.set_value(first.get_value() * 2.0)
            y = scaled(jnp.array(1.0)) if has_gradient else second.get_value() ** 2
        return tape.gradient(y, variables)

    assert numbers((mr.function(step) if compiled else step)()) == [24.0, None]
