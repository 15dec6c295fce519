"""A model that nobody uses any more is freed at once, as in hand-written JAX, and leaves nothing in caches."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.tape import catalogue


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def train(devices: int, steps: int | None, *, compiled: bool = True) -> tuple[list[weakref.ref[Any]], list[str]]:
    """Trains a model for two calls; returns references to its variables, and optax's names of its parameters."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices])
    names: list[str] = []

    def seen(parameters: dict[str, jax.Array]) -> dict[str, bool]:
        names[:] = parameters
        return dict.fromkeys(parameters, True)

    with strategy.scope():
        w, b = mr.Variable(np.ones((4, 3), np.float32)), mr.Variable(np.zeros(3, np.float32))
        optimizer = mr.optimizers.Optimizer(optax.masked(optax.adam(1e-3), seen))

    def replica_step(x: jax.Array) -> jax.Array:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(jnp.sum(jax.nn.relu(x @ w + b) ** 2, axis=-1))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
        return loss

    def step(x: Any) -> Any:
        return strategy.run(replica_step, args=(x,))

    run = mr.function(step, steps_per_call=steps) if compiled else step
    batch = np.ones((8, 4), np.float32)
    for _ in range(2):
        jax.block_until_ready(run(batch if steps is None else [batch] * steps))
    return [weakref.ref(one) for one in (w, b, *optimizer.variables)], sorted(names)


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.usefixtures("without_collector")
@pytest.mark.first(2)
def test_a_compiled_model_is_freed_without_the_collector(devices: int, steps: int | None) -> None:
    held, _ = train(devices, steps)
    assert len(held) > 5
    assert [one() for one in held if one() is not None] == []


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.usefixtures("without_collector")
@pytest.mark.first(1)
def test_an_eager_model_is_freed_without_the_collector(devices: int) -> None:
    held, _ = train(devices, None, compiled=False)
    assert [one() for one in held if one() is not None] == []


def test_operations_of_a_trace_leave_the_catalogue_with_it() -> None:
    train(1, None)
    before = len(catalogue._programs), len(catalogue._calls)
    train(1, None)
    assert (len(catalogue._programs), len(catalogue._calls)) == before


@pytest.mark.long
def test_optax_sees_the_same_names_for_each_unnamed_model() -> None:
    assert train(1, None)[1] == train(1, None)[1] == ["Variable", "Variable_1"]


@pytest.mark.first(3)
@pytest.mark.parametrize("under_tape", [False, True], ids=["no tape", "tape"])
@pytest.mark.parametrize("kind", ["array", "mirrored", "per replica"])
@pytest.mark.usefixtures("without_collector")
def test_the_arguments_of_the_first_call_are_freed(kind, under_tape):
    """The function and its program kept them, a batch for each signature."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    function = mr.function(lambda batch: strategy.run(lambda one: one["x"] * 2.0, args=(batch,)))

    def first_call() -> weakref.ref[Any]:
        array: Any = jnp.ones((2, 3))
        value: Any = array if kind == "array" else mr.Mirrored(array, 2)
        if kind == "per replica":
            value = strategy.experimental_distribute_values_from_function(lambda _: jnp.ones((2, 3)))
            array = value.stacked(strategy.device_assignment)
        with mr.GradientTape() if under_tape else contextlib.nullcontext():
            function({"x": value})
        return weakref.ref(array)

    assert first_call()() is None
