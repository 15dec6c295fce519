"""The update of each optimizer has the same bits on any number of devices, in each way of running."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr

REPLICAS, STEPS = 4, 2
SHAPES = [(64,), (64,), (64,), (4, 4), (4, 4)]  # equal operations on variables of one shape are what XLA merges
NATIVE = {
    **{name: getattr(mr.optimizers, name) for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Lion", "Lamb")},
    **{
        name: (lambda rate, make=make: mr.optimizers.Optimizer(make(rate)))
        for name, make in {
            "momentum": functools.partial(optax.sgd, momentum=0.9, nesterov=True),
            "yogi": optax.yogi,
            "adafactor": optax.adafactor,
            "nadam": optax.nadam,
            "adabelief": optax.adabelief,
            "adamax": optax.adamax,
        }.items()
    },
}
OF_KERAS = [
    "SGD",
    "Adam",
    "AdamW",
    "Nadam",
    "Lamb",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Ftrl",
    "Lion",
    "Adafactor",
    "Muon",
]
Step = Callable[[Any], Any]
random = np.random.default_rng(0)
VALUES = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
BATCHES = [random.normal(size=(REPLICAS * 2, 4)).astype(np.float32) for _ in range(STEPS)]
GRADIENTS = [jnp.asarray(random.normal(size=shape).astype(np.float32)) for shape in SHAPES]


def loss_of(x: Any, weights: Sequence[Any]) -> Any:
    return mr.losses.average_loss(sum(jnp.mean(jnp.tanh(x @ jnp.reshape(w, (4, -1))), 1) for w in weights))


def in_a_run(strategy: Any, weights: Sequence[Any], optimizer: Any) -> Step:
    def replica(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(x, weights)
        optimizer.apply_gradients(list(zip(tape.gradient(loss, list(weights)), weights, strict=True)))

    return lambda x: strategy.run(replica, args=(x,))


def across_replicas(strategy: Any, weights: Sequence[Any], optimizer: Any) -> Step:
    def step(x: Any) -> None:
        with strategy.scope():
            optimizer.apply_gradients(list(zip(GRADIENTS, weights, strict=True)))

    return step


def trained(devices: int, make: Any, variable: Any, how: Any, wrap: Callable[[Step], Step]) -> list[bytes]:
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=REPLICAS, deterministic=True)
    with strategy.scope():
        weights = [variable(value) for value in VALUES]
        optimizer = make(0.05)
    step = wrap(how(strategy, weights, optimizer))
    for batch in strategy.experimental_distribute_dataset(
        mr.data.Dataset.from_tensor_slices(np.concatenate(BATCHES)).batch(REPLICAS * 2)
    ):
        step(batch)
    return [np.asarray(w.numpy()).tobytes() for w in weights]


WAYS = {
    f"{how.__name__} {kind}": (how, wrap)
    for how, (kind, wrap) in itertools.product(
        (in_a_run, across_replicas), (("eager", lambda step: step), ("compiled", mr.function))
    )
}


@pytest.mark.first(5)
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("name", sorted(NATIVE, key=lambda name: name not in ("Adam", "RMSprop", "yogi")))
def test_updates_have_the_same_bits_on_any_number_of_devices(name: str, kind: str) -> None:
    """Eager updates and compiled ones outside of a run had other bits on one device than on several, silently."""
    one, *others = (trained(devices, NATIVE[name], mr.Variable, *WAYS[kind]) for devices in (1, 2, 4))
    assert others == [one, one]


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["in_a_run compiled", "in_a_run eager"])
@pytest.mark.parametrize("name", sorted(OF_KERAS, key=lambda name: name not in ("RMSprop", "Adagrad", "Adafactor")))
def test_updates_of_keras_have_the_same_bits_on_any_number_of_devices(name: str, kind: str) -> None:
    """Keras divides by square roots, which were computed otherwise on devices with one replica, silently."""
    keras = pytest.importorskip("keras")
    make = getattr(keras.optimizers, name)
    one, *others = (trained(devices, make, keras.Variable, *WAYS[kind]) for devices in (1, 3, 4))
    assert others == [one, one]


def test_a_compiled_function_without_a_run_has_the_same_bits_on_any_number_of_devices() -> None:
    def results(devices: int) -> list[bytes]:
        names = [f"CPU:{index}" for index in range(devices)]
        strategy = mr.MirroredStrategy(names, num_replicas=REPLICAS, deterministic=True)
        with strategy.scope():
            weights = [mr.Variable(value) for value in VALUES]

        @mr.function
        def decayed() -> Any:
            norms = [jnp.sqrt(jnp.sum(jnp.square(w.read_value()))) for w in weights]
            for w, norm in zip(weights, norms, strict=True):
                w.assign(w * 0.9 + jnp.tanh(w / norm) * 0.1 + jax.nn.softmax(w.read_value(), -1))
            return norms

        norms = decayed()
        return [np.asarray(one).tobytes() for one in (*norms, *(w.numpy() for w in weights))]

    assert [devices for devices in (2, 3, 4) if results(devices) != results(1)] == []
