"""Arithmetic inside `merge_call` and its gradients have the same bits on any number of devices.

The merged function computes once per device what all of the device's replicas read.
"""

from __future__ import annotations

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
