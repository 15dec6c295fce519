"""Every named optimizer takes the steps of optax, in every execution mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError
from mirrored.optimizers import SGD, Adagrad, Adam, AdamW, Lamb, Lion, Momentum, Optimizer, RMSprop
from mirrored.testing.parity import assert_close_by_norm
from optimizers.steps import step_of

SCHEDULE = optax.cosine_decay_schedule(0.3, 6)

CASES: dict[str, tuple[Any, Any]] = {
    "SGD": (lambda: SGD(0.1), lambda: optax.sgd(0.1)),
    "SGD-momentum": (lambda: SGD(0.1, momentum=0.9), lambda: optax.sgd(0.1, 0.9)),
    "Momentum": (lambda: Momentum(0.1), lambda: optax.sgd(0.1, 0.9)),
    "Momentum-nesterov": (lambda: Momentum(0.1, nesterov=True), lambda: optax.sgd(0.1, 0.9, nesterov=True)),
    "Adam": (lambda: Adam(0.1), lambda: optax.adam(0.1, eps=1e-7)),
    "Adam-amsgrad": (lambda: Adam(0.1, amsgrad=True), lambda: optax.amsgrad(0.1, eps=1e-7)),
    "AdamW": (lambda: AdamW(0.1), lambda: optax.adamw(0.1, eps=1e-7, weight_decay=0.004)),
    "Adagrad": (lambda: Adagrad(0.1), lambda: optax.adagrad(0.1, eps=1e-7)),
    "RMSprop": (lambda: RMSprop(0.1, momentum=0.5), lambda: optax.rmsprop(0.1, eps=1e-7, momentum=0.5)),
    "RMSprop-centered": (lambda: RMSprop(0.1, centered=True), lambda: optax.rmsprop(0.1, eps=1e-7, centered=True)),
    "Lion": (lambda: Lion(0.1, weight_decay=0.1), lambda: optax.lion(0.1, weight_decay=0.1)),
    "Lamb": (lambda: Lamb(0.1, weight_decay=0.1), lambda: optax.lamb(0.1, eps=1e-7, weight_decay=0.1)),
    "schedule": (lambda: Adam(SCHEDULE), lambda: optax.adam(SCHEDULE, eps=1e-7)),
    "transform": (lambda: Optimizer(optax.yogi(0.1)), lambda: optax.yogi(0.1)),
    "factory": (lambda: Optimizer(optax.adamax, learning_rate=0.1), lambda: optax.adamax(0.1)),
}  # fmt: skip

X = np.random.default_rng(0).normal(size=(5, 8, 3)).astype(np.float32)


def _loss(parameters: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ parameters["w"] + parameters["b"]) ** 2) / 8.0


def _start() -> dict[str, jax.Array]:
    return {"b": jnp.full((2,), 0.5), "w": jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)}


def _reference(transform: optax.GradientTransformation) -> dict[str, jax.Array]:
    parameters = _start()
    state = transform.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any) -> Any:
        updates, state = transform.update(jax.grad(_loss)(parameters, x), state, parameters)
        return optax.apply_updates(parameters, updates), state

    for x in X:
        parameters, state = step(parameters, state, x)
    return parameters


@pytest.mark.ways(replicas=(2,))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(4)
@pytest.mark.first(1)
@pytest.mark.long
def test_steps_are_those_of_optax(way, case):
    make, transform = CASES[case]
    with way.strategy.scope():
        variables = {name: mr.Variable(value, name=name) for name, value in _start().items()}
        optimizer = make()

    def replica_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = _loss(variables, x)
        ordered = list(variables.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, ordered), ordered, strict=True))

    step = way.compile(lambda x: way.strategy.run(replica_step, args=(x,)))
    for x in way.strategy.experimental_distribute_dataset(list(X)):
        step(x)
    assert int(optimizer.iterations.numpy()) == len(X)
    actual = {name: variable.numpy() for name, variable in variables.items()}
    assert_close_by_norm(actual, jax.tree.map(np.asarray, _reference(transform())), 2e-6)


@pytest.mark.ways(modes=("eager", "compiled"), replicas=(1, 2, 4))
@pytest.mark.first(4)
def test_bfloat16_parameters_stay_bfloat16(way):
    with way.strategy.scope():
        variable = mr.Variable(jnp.ones(3, jnp.bfloat16))
        optimizer = AdamW(0.5)
    gradient = jnp.ones(3, jnp.float32)
    step = step_of(way, lambda: optimizer.apply_gradients([(gradient, variable)]))
    step()
    assert variable.dtype == jnp.bfloat16
    assert variable.read_value().dtype == jnp.bfloat16
    np.testing.assert_allclose(variable.numpy().astype(np.float32), np.full(3, 0.5), atol=0.01)
    assert {slot.dtype for slot in optimizer.slots(variable).values()} == {jnp.dtype(jnp.bfloat16)}


def test_weight_decay_leaves_masked_variables_out():
    kernel, bias = mr.Variable(1.0, name="kernel"), mr.Variable(1.0, name="bias")
    optimizer = AdamW(0.1, weight_decay=0.5, weight_decay_mask=lambda tree: {name: name != "bias" for name in tree})
    optimizer.apply_gradients([(0.0, kernel), (0.0, bias)])
    np.testing.assert_allclose([kernel.numpy(), bias.numpy()], [0.95, 1.0], rtol=1e-6)


def test_a_mask_of_weight_decay_names_every_variable():
    kernel, bias = mr.Variable(1.0, name="kernel"), mr.Variable(1.0, name="bias")
    incomplete = AdamW(0.1, weight_decay=0.5, weight_decay_mask={"kernel": True})
    with pytest.raises(ArgumentError, match="no entry for 'bias'"):
        incomplete.apply_gradients([(0.0, kernel), (0.0, bias)])
    complete = AdamW(0.1, weight_decay=0.5, weight_decay_mask={"kernel": True, "bias": False, "other": True})
    complete.apply_gradients([(0.0, kernel), (0.0, bias)])
    np.testing.assert_allclose([kernel.numpy(), bias.numpy()], [0.95, 1.0], rtol=1e-6)


@pytest.mark.parametrize("kind", [SGD, Momentum, Adam, AdamW, Adagrad, RMSprop, Lion, Lamb])
def test_decay_is_decoupled(kind):
    variable = mr.Variable([2.0, 2.0])
    kind(0.1, weight_decay=0.5).apply_gradients([(jnp.zeros(2), variable)])
    # LAMB scales the decay, its only update, to the norm of the parameters.
    expected = 1.8 if kind is Lamb else 1.9
    np.testing.assert_allclose(variable.numpy(), np.full(2, expected), rtol=1e-6)


def test_options_are_checked():
    with pytest.raises(ArgumentError, match="momentum=1.5"):
        SGD(0.1, momentum=1.5)
    with pytest.raises(ArgumentError, match="weight_decay=-0.1"):
        AdamW(weight_decay=-0.1)
    with pytest.raises(TypeError, match="use_ema"):
        Adam(use_ema=True)
    with pytest.raises(ArgumentError, match="clipnorm=1.0 and clipvalue=1.0"):
        Adam(clipnorm=1.0, clipvalue=1.0)


def test_repr_says_what_it_is():
    variable = mr.Variable(1.0)
    optimizer = Adam(0.5, clipnorm=1.0, name="mine")
    assert repr(optimizer).startswith("<Adam 'mine' (learning_rate=0.5, beta_1=0.9, ")
    assert "clipnorm=1.0" in repr(optimizer)
    assert "weight_decay" not in repr(optimizer)
    optimizer.build([variable])
    assert repr(optimizer).endswith("over 1 variable>")
    assert "learning_rate=<lambda>" in repr(SGD(lambda step: 0.1))
