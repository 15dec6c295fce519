from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr
from mirrored.errors import ArgumentError
from mirrored.optimizers.rules import Clipping

GRADIENTS = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([0.0, 12.0])}


def test_nothing_leaves_gradients_as_they_are():
    assert Clipping().apply(GRADIENTS) is GRADIENTS


def test_clipvalue_bounds_each_element():
    clipped = Clipping(clipvalue=3.5).apply(GRADIENTS)
    np.testing.assert_array_equal(clipped["a"], [3.0, 3.5])
    np.testing.assert_array_equal(clipped["b"], [0.0, 3.5])


def test_clipnorm_bounds_each_variable():
    clipped = Clipping(clipnorm=6.0).apply(GRADIENTS)
    np.testing.assert_array_equal(clipped["a"], [3.0, 4.0])
    np.testing.assert_allclose(clipped["b"], [0.0, 6.0], rtol=1e-6)


def test_global_clipnorm_bounds_all_together():
    clipped = Clipping(global_clipnorm=6.5).apply(GRADIENTS)
    np.testing.assert_allclose(clipped["a"], [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [0.0, 6.0], rtol=1e-6)


def test_complex_gradients_are_clipped_by_norm_only():
    gradients = {"z": jnp.array([3.0 + 4.0j])}
    np.testing.assert_allclose(Clipping(clipnorm=1.0).apply(gradients)["z"], [0.6 + 0.8j], rtol=1e-6)
    with pytest.raises(ArgumentError, match="a gradient of dtype complex64 for variable 'z'"):
        Clipping(clipvalue=1.0).apply(gradients)


@pytest.mark.parametrize("bound", [{"clipvalue": 1.0}, {"clipnorm": 1.0}, {"global_clipnorm": 1.0}], ids=str)
def test_clipping_uses_no_deprecated_function(bound):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Clipping(**bound).apply(GRADIENTS)


def test_clipnorm_takes_the_absolute_values_of_complex_gradients():
    clipped = Clipping(clipnorm=1.0).apply({"a": jnp.array([[3.0j, 4.0]])})
    np.testing.assert_allclose(clipped["a"], [[0.6j, 0.8]], rtol=1e-6)


def test_a_zero_gradient_stays_zero():
    zeros = {"a": jnp.zeros(3)}
    for clipping in (Clipping(clipnorm=1.0), Clipping(global_clipnorm=1.0), Clipping(clipvalue=1.0)):
        np.testing.assert_array_equal(clipping.apply(zeros)["a"], np.zeros(3))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_a_bound_is_a_finite_number_above_0(name, bound):
    with pytest.raises(ArgumentError, match=f"(?s){name}=.*finite number greater than 0"):
        Clipping(**{name: bound})


def test_only_one_way_of_clipping():
    with pytest.raises(ArgumentError, match="clipnorm=1.0 and clipvalue=2.0"):
        Clipping(clipnorm=1.0, clipvalue=2.0)


# The examples' gradients point in different directions, so that clipping each replica's changes the step.
X = np.diag(np.arange(1.0, 5.0)).astype(np.float32)
RATE, BOUND = 1.0, 0.5
CLIPPED = optax.chain(optax.clip_by_global_norm(BOUND), optax.sgd(RATE))


def loss_of(w: Any, x: Any) -> Any:
    """This replica's part of the global mean of losses whose gradients are the rows of `x`."""
    return jnp.sum(x @ w) / len(X)


def by_our_optimizer(make: Callable[[], Any]) -> Callable[[], tuple[Callable[[Any], None], Callable[[], Any]]]:
    def made() -> tuple[Callable[[Any], None], Callable[[], Any]]:
        w, optimizer = mr.Variable(jnp.zeros(4)), make()

        def step(x: Any) -> None:
            with mr.GradientTape() as tape:
                loss = loss_of(w.read_value(), x)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        return step, w.numpy

    return made


def by_keras(**clipping: float) -> Callable[[], tuple[Callable[[Any], None], Callable[[], Any]]]:
    def made() -> tuple[Callable[[Any], None], Callable[[], Any]]:
        w = keras.Variable(np.zeros(4, np.float32))
        optimizer = keras.optimizers.SGD(RATE, **clipping)

        def step(x: Any) -> None:
            with mr.GradientTape() as tape:
                loss = loss_of(w.value, x)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        return step, lambda: np.asarray(w)

    return made


def by_nnx() -> tuple[Callable[[Any], None], Callable[[], Any]]:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.zeros(4))

    model = mr.mirror(Model())
    optimizer = nnx.Optimizer(model, CLIPPED, wrt=nnx.Param)

    def step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(model.w[...], x)
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))

    return step, lambda: np.asarray(model.w[...])


def by_optax() -> tuple[Callable[[Any], None], Callable[[], Any]]:
    w = mr.Variable(jnp.zeros(4))

    def step(x: Any) -> None:
        gradient = jax.grad(loss_of)(w.read_value(), x)
        gradient = mr.get_replica_context().all_reduce("SUM", gradient)  # first the sum, then the clipping
        updates, _ = CLIPPED.update(gradient, CLIPPED.init(w.read_value()))
        w.assign_add(updates)

    return step, w.numpy


CLIPPINGS = {
    "clip_by_global_norm in our optimizer": by_our_optimizer(lambda: mr.optimizers.Optimizer(CLIPPED)),
    "clipnorm": by_our_optimizer(lambda: mr.optimizers.SGD(RATE, clipnorm=BOUND)),
    "global_clipnorm": by_our_optimizer(lambda: mr.optimizers.SGD(RATE, global_clipnorm=BOUND)),
    "Keras clipnorm": by_keras(clipnorm=BOUND),
    "Keras global_clipnorm": by_keras(global_clipnorm=BOUND),
    "nnx.Optimizer": by_nnx,
    "optax after all_reduce": by_optax,
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (4, 4), (1, 2), (2, 4)])
@pytest.mark.parametrize("name", CLIPPINGS)
@pytest.mark.sampled(8)
@pytest.mark.first(2)
def test_clipping_acts_on_the_gradient_of_the_global_batch(
    name: str, devices: int, replicas: int, compiled: bool
) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)
    with strategy.scope():
        step, weights = CLIPPINGS[name]()
    (x,) = strategy.experimental_distribute_dataset([X])
    run = lambda x: strategy.run(step, args=(x,))  # noqa: E731
    (mr.function(run) if compiled else run)(x)
    gradient = jax.grad(loss_of)(jnp.zeros(4), X)
    expected = -RATE * gradient * BOUND / jnp.linalg.norm(gradient)
    np.testing.assert_allclose(weights(), expected, rtol=1e-6)


@pytest.mark.parametrize("bound", ["clipnorm", "global_clipnorm"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_a_norm_above_the_range_of_squares_of_float16_is_clipped_to_the_bound(bound, dtype):
    """The norm is 600, and its square overflows in float16: a gradient divided by inf would be 0."""
    clipped = Clipping(**{bound: 1.0}).apply({"a": jnp.full(4, 300.0, dtype)})["a"]
    np.testing.assert_array_equal(clipped.astype(np.float32), np.full(4, 0.5))
    assert clipped.dtype == dtype
