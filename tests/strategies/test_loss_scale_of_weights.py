"""Weighted and masked means over one replica's examples, whose gradients the optimizer sums: warned of."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.errors import LossScaleWarning

BATCH, FEATURES, TASKS, REPLICAS = 24, 3, 5, 4
TABLE = jnp.linspace(0.5, 1.5, TASKS)
ALL_LAYOUTS = pytest.mark.parametrize("devices", [1, 2, 3, 4], ids=["1x4", "2x2", "uneven", "4x1"])


def table(w: Any, x: Any) -> Any:
    """``[batch, tasks]``."""
    return (jnp.tanh(x @ w) - 0.3) ** 2


def losses(w: Any, x: Any) -> Any:
    """``[batch]``."""
    return table(w, x).sum(axis=1)


def total(value: Any) -> Any:
    return mr.get_replica_context().all_reduce("SUM", value)


def per_task(w: Any, x: Any, m: Any) -> Any:
    known = jnp.broadcast_to(m[:, None], (len(x), TASKS)) * (jnp.abs(x[:, :1]) > 0.1)
    return jnp.sum(known * table(w, x), axis=0), known.sum(axis=0)


WRONG = {
    "masked mean": lambda w, x, y, m: jnp.sum(jnp.where(m > 0, losses(w, x), 0)) / jnp.sum(m > 0),
    "jnp.mean of where": lambda w, x, y, m: jnp.mean(losses(w, x), where=m > 0),
    "weighted mean": lambda w, x, y, m: jnp.sum(losses(w, x) * m) / jnp.sum(m),
    "jnp.average": lambda w, x, y, m: jnp.average(losses(w, x), weights=m),
    "at least one example": lambda w, x, y, m: jnp.sum(losses(w, x) * m) / jnp.maximum(jnp.sum(m), 1.0),
    "or nothing": lambda w, x, y, m: jnp.sum(losses(w, x) * m) / jnp.where(jnp.sum(m) > 0, jnp.sum(m) + 1e-6, 1.0),
    "normalized weights": lambda w, x, y, m: jnp.sum(losses(w, x) * (m / jnp.sum(m))),
    "reciprocal": lambda w, x, y, m: jnp.sum(losses(w, x) * m) * (1.0 / jnp.sum(m)),
    "weights of classes": lambda w, x, y, m: jnp.sum(losses(w, x) * TABLE[y]) / jnp.sum(TABLE[y]),
    "mask of tokens": lambda w, x, y, m: jnp.sum(table(w, x) * (x[:, :1] > 0)) / (TASKS * jnp.sum(x[:, 0] > 0)),
    "half of it": lambda w, x, y, m: 0.5 * (jnp.sum(losses(w, x) * m) / jnp.sum(m)),
    "dot": lambda w, x, y, m: jnp.dot(losses(w, x), m) / jnp.dot(m, jnp.ones_like(m)),
    "of each task": lambda w, x, y, m: jnp.mean(per_task(w, x, m)[0] / jnp.maximum(per_task(w, x, m)[1], 1)),
    "jitted": lambda w, x, y, m: jax.jit(lambda a, b: jnp.sum(a * b) / jnp.sum(b))(losses(w, x), m),
    "with a penalty": lambda w, x, y, m: jnp.average(losses(w, x), weights=m) + jnp.sum(w**2) / REPLICAS,
}
RIGHT = {
    "by the sum of all replicas": lambda w, x, y, m: jnp.sum(losses(w, x) * m) / total(jnp.sum(m)),
    "average_loss with weights": lambda w, x, y, m: mr.losses.average_loss(losses(w, x), m),
    "average_loss with a mask": lambda w, x, y, m: mr.losses.average_loss(losses(w, x), m > 0),
    "by the count of all replicas": lambda w, x, y, m: (
        jnp.sum(jnp.where(m > 0, losses(w, x), 0)) / jnp.maximum(total(jnp.sum(m > 0)), 1)
    ),
    "normalized by all replicas": lambda w, x, y, m: jnp.sum(losses(w, x) * (m / total(jnp.sum(m)))),
    "mean of weighted means": lambda w, x, y, m: jnp.average(losses(w, x), weights=m) / REPLICAS,
    "divided before": lambda w, x, y, m: jnp.sum(losses(w, x) * m / REPLICAS) / jnp.sum(m),
    "share of the sum": lambda w, x, y, m: jnp.average(losses(w, x), weights=m) * (jnp.sum(m) / total(jnp.sum(m))),
    "compute_average_loss": lambda w, x, y, m: mr.losses.compute_average_loss(losses(w, x), m),
    "weighted sum": lambda w, x, y, m: jnp.sum(losses(w, x) * m) / BATCH,
    "rows normalized": lambda w, x, y, m: mr.losses.average_loss(losses(w, x / jnp.abs(x).sum(1, keepdims=True))),
    "features standardized": lambda w, x, y, m: mr.losses.average_loss(
        losses(w, (x - x.mean(0)) * (1.0 / jnp.sqrt(x.var(0) + 1e-5)))
    ),
    "input by its sum": lambda w, x, y, m: mr.losses.average_loss(losses(w, x / jnp.abs(x).sum())),
    "input by its maximum": lambda w, x, y, m: mr.losses.average_loss(losses(w, x * (1.0 / jnp.abs(x).max()))),
    "logarithm": lambda w, x, y, m: jnp.log(jnp.sum(losses(w, x))),
    "root": lambda w, x, y, m: jnp.sqrt(jnp.sum(losses(w, x))) / REPLICAS,
    "softmax of the batch": lambda w, x, y, m: jax.nn.logsumexp(losses(w, x)) - jnp.sum(losses(w, x)),
    "ratio of sums of predictions": lambda w, x, y, m: jnp.sum(losses(w, x) * m) / jnp.sum(jnp.abs(x @ w)),
    "focal weights": lambda w, x, y, m: mr.losses.average_loss(
        losses(w, x) * jax.lax.stop_gradient(losses(w, x) / losses(w, x).max())
    ),
}


def step_of(loss_of: Any) -> Any:
    w = mr.Variable(jnp.full((FEATURES, TASKS), 0.1) * jnp.arange(TASKS))
    update = mr.optimizers.Optimizer(optax.sgd(0.1))

    def step(x: Any, y: Any, m: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = loss_of(w.read_value(), x, y, m)
        update.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    return step


def run(loss_of: Any, devices: int, **options: Any) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, **options)
    with strategy.scope():
        step = step_of(loss_of)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH, FEATURES)).astype("float32"), rng.integers(0, TASKS, BATCH)
    weights = rng.integers(0, 3, BATCH).astype("float32")
    batch = next(iter(strategy.experimental_distribute_dataset([(x, y, weights)])))
    mr.function(lambda *parts: strategy.run(step, args=parts)).lower(*batch)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.first(5)
def test_weighted_means_of_one_replica_are_warned_of(name):
    with pytest.warns(LossScaleWarning, match=r"sum over the 6 examples of one replica.*: the step is 4 times"):
        run(WRONG[name], 2)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.first(6)
def test_weighted_means_of_all_replicas_are_not_warned_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(RIGHT[name], 2)


@ALL_LAYOUTS
@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=["", "deterministic"])
@pytest.mark.first(4)
def test_every_layout_warns_of_the_same(devices, options):
    with pytest.warns(LossScaleWarning, match="weighted or masked mean"):
        run(WRONG["masked mean"], devices, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(RIGHT["by the sum of all replicas"], devices, **options)


def test_one_replica_has_the_whole_batch():
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        strategy = mr.MirroredStrategy(jax.devices()[:1])
        with strategy.scope():
            step = step_of(WRONG["weighted mean"])
        x, m = np.ones((6, FEATURES), np.float32), np.ones(6, np.float32)
        mr.function(lambda: strategy.run(step, args=(x, m, m))).lower()


def test_the_remedy_gives_the_step_of_one_device():
    def trained(loss_of: Any, replicas: int) -> Any:
        strategy = mr.MirroredStrategy(jax.devices()[:replicas])
        with strategy.scope():
            w = mr.Variable(jnp.full((FEATURES, TASKS), 0.1))
            update = mr.optimizers.SGD(0.1)

        def step(x: Any, m: Any) -> None:
            with mr.GradientTape() as tape:
                loss = loss_of(w.read_value(), x, None, m)
            update.apply_gradients([(tape.gradient(loss, w), w)])

        x = np.random.default_rng(1).normal(size=(8, FEATURES)).astype("float32")
        m = np.float32([1, 1, 1, 1, 1, 0, 0, 0])
        batch = next(iter(strategy.experimental_distribute_dataset([(x, m)])))
        mr.function(lambda *parts: strategy.run(step, args=parts))(*batch)
        return w.numpy()

    whole = trained(WRONG["weighted mean"], 1)
    np.testing.assert_allclose(trained(RIGHT["average_loss with weights"], 4), whole, rtol=1e-6)
