"""Arithmetic inside `merge_call` and its gradients have the same bits on any number of devices.

The merged function computes once per device what all of the device's replicas read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

RANDOM = np.random.default_rng(12)
X = (RANDOM.normal(size=(48, 7)) * np.exp(2 * RANDOM.normal(size=(48, 1)))).astype("f")
Y = RANDOM.normal(size=(48, 4)).astype("f")
W = RANDOM.normal(size=(7, 4)).astype("f")


def mean(context: Any, value: Any, w: Any) -> Any:
    return context.merge_call(lambda strategy, x: strategy.reduce("MEAN", x, axis=None), (value,))


def scaled(context: Any, value: Any, w: Any) -> Any:
    return context.merge_call(lambda strategy, x: strategy.reduce("SUM", x, axis=None) * 0.3, (value,))


def combined(context: Any, value: Any, w: Any) -> Any:
    def merge(strategy: Any, x: Any, w: Any) -> Any:
        return strategy.reduce("SUM", x, axis=None) * 0.3 + strategy.reduce("MEAN", w, axis=None)[0] * 0.7

    return context.merge_call(merge, (value, w * 1.1))


def chosen(context: Any, value: Any, w: Any) -> Any:
    return context.merge_call(lambda strategy, x: strategy.experimental_local_results(x)[0] * 0.3, (value,))


def divided(context: Any, value: Any, w: Any) -> Any:
    return context.all_reduce("MEAN", value) * 0.7 + context.all_reduce("SUM", value) * 0.3


@pytest.mark.parametrize(("replicas", "devices"), [(3, (1, 3)), (4, (1, 2, 4)), (6, (1, 3, 6))])
@pytest.mark.parametrize("center_of", [mean, scaled, combined, chosen, divided], ids=lambda fn: fn.__name__)
@pytest.mark.long
def test_a_center_and_its_gradient(center_of: Callable[..., Any], replicas: int, devices: tuple[int, ...]) -> None:
    found = []
    for count in devices:
        strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(count)], num_replicas=replicas, deterministic=True)
        with strategy.scope():
            w = mr.Variable(W)

        def replica(x: Any, y: Any, w: Any = w) -> Any:
            with mr.GradientTape() as tape:
                h = x @ w
                center = center_of(mr.get_replica_context(), h.mean(0), w.read_value())
                loss = mr.losses.average_loss(((h - center - y) ** 2).sum(-1))
            return tape.gradient(loss, w), loss, h - center

        def step(x: Any, y: Any, strategy: Any = strategy, replica: Any = replica) -> Any:
            results = strategy.run(replica, args=(x, y))
            return [jnp.stack(strategy.experimental_local_results(result)) for result in results]

        ((x, y),) = strategy.experimental_distribute_dataset([(X, Y)])
        found.append([np.asarray(result) for result in mr.function(step)(x, y)])
    for results in found[1:]:
        for result, expected in zip(results, found[0], strict=True):
            np.testing.assert_array_equal(result, expected)


def weighted(strategy: Any, h: Any, y: Any) -> Any:
    return strategy.reduce("MEAN", h, axis=None) * y * 0.3 + y * 0.7


def nested(strategy: Any, h: Any, y: Any) -> Any:
    inner = strategy.run(lambda h, y: h * y * 0.3, args=(h, y))
    return strategy.reduce("MEAN", inner, axis=None) * 0.7 + strategy.run(lambda y: y, args=(y,)) * 0.1


@pytest.mark.first(2)
@pytest.mark.parametrize("merged", [weighted, nested], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("under_tape", [False, True])
def test_a_value_from_outside_the_run_is_one_value_in_the_merged_function(
    under_tape: bool, merged: Callable[..., Any]
) -> None:
    found = []
    for count, compiled in [(2, False), (1, True), (2, True), (4, True)]:
        strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(count)], num_replicas=4, deterministic=True)

        def replica(x: Any, y: Any) -> Any:
            h = (x @ W).mean(0)
            return mr.get_replica_context().merge_call(merged, (h, y)) * h

        def step(x: Any, w: Any, strategy: Any = strategy, replica: Any = replica) -> Any:
            with mr.GradientTape() if under_tape else contextlib.nullcontext() as tape:
                y = w * 1.3
                if tape is not None:
                    tape.watch(y)
                total = strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)
            return total if tape is None else tape.gradient(total, y)

        (x,) = strategy.experimental_distribute_dataset([X])
        found.append(np.asarray((mr.function(step) if compiled else step)(x, jnp.asarray(W[0]))))
    eager, first, *others = found
    np.testing.assert_allclose(first, eager, rtol=1e-5)
    for other in others:
        np.testing.assert_array_equal(other, first)
