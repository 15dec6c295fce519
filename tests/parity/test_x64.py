"""With ``jax_enable_x64`` everything is computed in float64: as on one device, to 12 digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.data import Dataset

BATCH, STEPS = 12, 4
LAYOUTS = pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (4, 4), (1, 2), (2, 4)])
WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
# Beyond the digits of float32: 1 + TINY is 1 there.
TINY = 1e-12
OPTIMIZERS: dict[str, tuple[Callable[[], Any], optax.GradientTransformation]] = {
    "SGD": (lambda: mr.optimizers.SGD(0.1), optax.sgd(0.1)),
    "Momentum": (lambda: mr.optimizers.Momentum(0.1, 0.9), optax.sgd(0.1, 0.9)),
    "Adam": (lambda: mr.optimizers.Optimizer(optax.adam(0.1)), optax.adam(0.1)),
    "clipped": (
        lambda: mr.optimizers.Optimizer(optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(0.1))),
        optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(0.1)),
    ),
}


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def strategy_of(devices: int, replicas: int, **options: Any) -> mr.MirroredStrategy:
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas, **options)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(BATCH, 3))
    return x, np.sin(x.sum(1, keepdims=True)) + TINY


def losses_of(w: Any, b: Any, x: Any, y: Any) -> Any:
    return ((jnp.tanh(x @ w) + b - y) ** 2)[:, 0]


def expected(transform: optax.GradientTransformation) -> tuple[list[float], list[np.ndarray]]:
    """One device, plain JAX in float64."""
    params = [jnp.zeros((3, 1)), jnp.zeros(1)]
    state, (x, y), losses = transform.init(params), data(), []
    for _ in range(STEPS):
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean(losses_of(*p, x, y)))(params)
        updates, state = transform.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return losses, [np.asarray(one) for one in params]


@pytest.mark.sampled(8)
@WAYS
@LAYOUTS
@pytest.mark.parametrize(("name", "deterministic"), [*((name, False) for name in OPTIMIZERS), ("Adam", True)])
@pytest.mark.first(1)
def test_training_in_float64(name: str, devices: int, replicas: int, compiled: bool, deterministic: bool) -> None:
    make, transform = OPTIMIZERS[name]
    strategy = strategy_of(devices, replicas, deterministic=deterministic)
    with strategy.scope():
        w, b, optimizer = mr.Variable(jnp.zeros((3, 1))), mr.Variable(np.zeros(1)), make()

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(losses_of(w.read_value(), b.read_value(), x, y))
        gradients = tape.gradient(loss, [w, b])
        assert [gradient.dtype for gradient in gradients] == [jnp.float64] * 2
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    run = mr.function(step) if compiled else step
    dataset = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data()).batch(BATCH).repeat(STEPS))
    losses = [run(*batch) for batch in dataset]
    assert all(loss.dtype == jnp.float64 for loss in losses)
    assert w.dtype == b.dtype == jnp.float64
    slots = [slot.dtype for slot in optimizer.variables if jnp.issubdtype(slot.dtype, jnp.inexact)]
    assert set(slots) <= {np.dtype("float64")}
    expected_losses, weights = expected(transform)
    np.testing.assert_allclose([float(loss) for loss in losses], expected_losses, rtol=1e-12)
    np.testing.assert_allclose(w.numpy(), weights[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(b.numpy(), weights[1], rtol=1e-12, atol=1e-14)


REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray], Any]]] = {
    "reduce SUM": (lambda strategy, x: strategy.reduce("SUM", x, axis=None), lambda rows: rows.sum(0)),
    "reduce MEAN": (lambda strategy, x: strategy.reduce("MEAN", x, axis=None), lambda rows: rows.mean(0)),
    "reduce SUM, axis": (lambda strategy, x: strategy.reduce("SUM", x, axis=0), lambda rows: rows.sum()),
    "reduce MEAN, axis": (lambda strategy, x: strategy.reduce("MEAN", x, axis=0), lambda rows: rows.mean()),
    "gather": (lambda strategy, x: strategy.gather(x, axis=0), np.ravel),
    "all_reduce SUM": (lambda strategy, x: in_replica(strategy, "SUM", x), lambda rows: rows.sum(0)),
    "all_reduce MEAN": (lambda strategy, x: in_replica(strategy, "MEAN", x), lambda rows: rows.mean(0)),
}


def in_replica(strategy: mr.MirroredStrategy, op: str, x: Any) -> Any:
    reduced = strategy.run(lambda x: mr.get_replica_context().all_reduce(op, x), args=(x,))
    return strategy.local_results(reduced)[0] if not isinstance(reduced, jax.Array) else reduced


@WAYS
@LAYOUTS
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.first(12)
def test_reductions_in_float64(name: str, devices: int, replicas: int, compiled: bool) -> None:
    reduce, reference = REDUCTIONS[name]
    strategy = strategy_of(devices, replicas)
    rows = 1.0 + TINY * (1 + np.arange(2.0 * replicas)).reshape(replicas, 2)
    x = strategy.experimental_distribute_values_from_function(lambda c: jnp.asarray(rows[c.replica_id_in_sync_group]))
    found = (mr.function(lambda x: reduce(strategy, x)) if compiled else lambda x: reduce(strategy, x))(x)
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(np.asarray(found), reference(rows), rtol=1e-15)


@WAYS
@LAYOUTS
@pytest.mark.first(6)
def test_variables_in_float64(devices: int, replicas: int, compiled: bool) -> None:
    strategy = strategy_of(devices, replicas)
    with strategy.scope():
        mirrored = mr.Variable(1.0, dtype=jnp.float64, aggregation=mr.VariableAggregation.MEAN)
        counted = mr.Variable(
            np.float64(0.0),
            synchronization=mr.VariableSynchronization.ON_READ,
            aggregation=mr.VariableAggregation.SUM,
        )
        whole = mr.Variable(np.int64(2**40))

    def update() -> None:
        k = jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, jnp.float64) + 1.0
        mirrored.assign_add(TINY * k)
        counted.assign_add(1.0 + TINY * k)
        whole.assign_add(1)

    run = lambda: strategy.run(update)  # noqa: E731
    (mr.function(run) if compiled else run)()
    total = replicas * (replicas + 1) / 2
    np.testing.assert_allclose(mirrored.numpy() - 1.0, TINY * total / replicas, rtol=1e-3)
    np.testing.assert_allclose(counted.numpy() - replicas, TINY * total, rtol=1e-2)
    assert mirrored.numpy().dtype == counted.numpy().dtype == np.float64
    assert int(whole.numpy()) == 2**40 + 1


@WAYS
def test_second_order_and_jacobians_in_float64(compiled: bool) -> None:
    v = mr.Variable(np.array([1.0 + TINY, 2.0]))

    def step() -> Any:
        with mr.GradientTape() as outer:
            with mr.GradientTape() as inner:
                y = jnp.sum(v.read_value() ** 3)
            first = inner.gradient(y, v)
        return first, outer.jacobian(first, v)

    first, second = (mr.function(step) if compiled else step)()
    assert first.dtype == second.dtype == jnp.float64
    np.testing.assert_allclose(first, 3 * v.numpy() ** 2, rtol=1e-15)
    np.testing.assert_allclose(second, np.diag(6 * v.numpy()), rtol=1e-15)


def test_a_mean_along_an_axis_counts_its_elements_exactly():
    strategy = strategy_of(1, 2)
    ones = strategy.run(lambda: jnp.ones((1 << 24) + 1))  # float32 has no such number
    assert float(strategy.reduce("MEAN", ones, axis=0)) == 1.0
