"""The settings of a replica's block reach the operations that all replicas execute together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored._jax.block_settings import BlockSettings, block_settings, call_with_settings

TINY = 1e-10  # beyond the digits of float32
LAYOUTS = pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 2), (2, 3), (2, 4)])
DETERMINISTIC = pytest.mark.parametrize("deterministic", [False, True])
WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def context() -> mr.ReplicaContext:
    return mr.get_replica_context()  # type: ignore[return-value]


def wide() -> jax.Array:
    replica = context().replica_id_in_sync_group
    return jnp.asarray(1 + TINY * (1 + replica), jnp.float64) * jnp.arange(1.0, 4.0, dtype=jnp.float64)


def rows(replicas: int) -> np.ndarray:
    return (1 + TINY * np.arange(1, replicas + 1))[:, None] * np.arange(1.0, 4.0)


def large() -> jax.Array:
    return jnp.asarray(2**40, jnp.int64) + jnp.asarray(context().replica_id_in_sync_group, jnp.int64)


def summed_and_scaled(strategy: Any, value: Any) -> Any:
    return strategy.reduce("SUM", value, axis=None) + jnp.asarray(np.pi)


def gradient_of(loss: Callable[[jax.Array], Any]) -> jax.Array:
    x = wide()
    with mr.GradientTape() as tape:
        tape.watch(x)
        value = loss(x)
    return tape.gradient(value, x)  # type: ignore[no-any-return]


# What a replica computes, and the results of all replicas in plain NumPy.
COMPUTED: dict[str, tuple[Callable[[], Any], Callable[[np.ndarray], Any]]] = {
    "sum": (lambda: context().all_reduce("SUM", wide()), lambda w: [w.sum(0)] * len(w)),
    "mean": (lambda: context().all_reduce("MEAN", wide()), lambda w: [w.mean(0)] * len(w)),
    "complex": (lambda: context().all_reduce("SUM", wide() * 2j), lambda w: [w.sum(0) * 2j] * len(w)),
    "integers": (
        lambda: context().all_reduce("SUM", large()),
        lambda w: [sum(2**40 + replica for replica in range(len(w)))] * len(w),
    ),
    "gather": (lambda: context().all_gather(wide(), axis=0), lambda w: [w.ravel()] * len(w)),
    "merge_call": (
        lambda: context().merge_call(summed_and_scaled, args=(wide(),)),
        lambda w: [w.sum(0) + np.pi] * len(w),
    ),
    "average_loss": (lambda: mr.losses.average_loss(wide() ** 2), lambda w: (w**2).mean(1) / len(w)),
    "gradient of average_loss": (
        lambda: gradient_of(lambda x: mr.losses.average_loss(x**2)),
        lambda w: 2 * w / w.size,
    ),
    "gradient of sum": (
        lambda: gradient_of(lambda x: jnp.sum(context().all_reduce("SUM", x) ** 2)),
        lambda w: [2 * len(w) * w.sum(0)] * len(w),
    ),
    "gradient of gather": (
        lambda: gradient_of(lambda x: jnp.sum(context().all_gather(x, axis=0) ** 2)),
        lambda w: 2 * len(w) * w,
    ),
}


@pytest.mark.first(18)
@LAYOUTS
@DETERMINISTIC
@WAYS
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.filterwarnings("error:Explicitly requested dtype")
def test_arrays_of_64_bits_that_a_replica_makes(name, compiled, deterministic, devices, replicas):
    """Merges narrowed them to 32 bits, or raised JAX's `ValueError`."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    compute, expected = COMPUTED[name]

    def replica() -> Any:
        with jax.enable_x64(True):
            return compute()

    run = lambda: strategy.run(replica)  # noqa: E731
    local = strategy.experimental_local_results((mr.function(run) if compiled else run)())
    results = local if len(local) == replicas else local * replicas  # that of `merge_call` is one for all
    for result, right in zip(results, expected(rows(replicas)), strict=True):
        assert result.dtype.itemsize >= 8
        np.testing.assert_allclose(np.asarray(result), right, rtol=1e-13)


@pytest.mark.first(16)
@LAYOUTS
@DETERMINISTIC
@WAYS
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.filterwarnings("error:Explicitly requested dtype")
def test_arrays_of_64_bits_that_are_reduced_after_the_block(op, compiled, deterministic, devices, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)

    def replica() -> Any:
        with jax.enable_x64(True):
            value = wide()
        return context().all_reduce(op, value)

    run = lambda: strategy.run(replica)  # noqa: E731
    right = getattr(rows(replicas), op.lower())(0)
    for result in strategy.experimental_local_results((mr.function(run) if compiled else run)()):
        np.testing.assert_allclose(np.asarray(result), right, rtol=1e-13)


@WAYS
@DETERMINISTIC
@pytest.mark.parametrize("is_scalar", [False, True])
@pytest.mark.filterwarnings("error:Explicitly requested dtype")
def test_the_gradient_of_a_block_with_64_bits(is_scalar, deterministic, compiled):
    """As `jax.grad` of a function with such a block."""
    strategy = mr.MirroredStrategy(jax.devices()[:2], num_replicas=2, deterministic=deterministic)

    def replica() -> Any:
        with jax.enable_x64(True):
            x = wide()
        with mr.GradientTape() as tape:
            tape.watch(x)
            with jax.enable_x64(True):
                target = x**2
                target = jnp.sum(target) if is_scalar else target
        return tape.gradient(target, x)

    run = lambda: strategy.run(replica)  # noqa: E731
    local = strategy.experimental_local_results((mr.function(run) if compiled else run)())
    np.testing.assert_allclose(np.stack([np.asarray(one) for one in local]), 2 * rows(2), rtol=1e-13)


@pytest.mark.first(8)
@LAYOUTS
@DETERMINISTIC
@WAYS
def test_gradients_of_64_bits_in_an_optimizer(compiled, deterministic, devices, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        narrow = mr.Variable(jnp.ones(3))
        optimizer = mr.optimizers.SGD(0.1)
        optimizer.build([narrow])

    def replica() -> None:
        with jax.enable_x64(True):
            optimizer.apply_gradients([(wide(), narrow)])

    run = lambda: strategy.run(replica)  # noqa: E731
    (mr.function(run) if compiled else run)()
    np.testing.assert_allclose(narrow.numpy(), 1 - 0.1 * rows(replicas).sum(0), rtol=1e-5)


@LAYOUTS
@WAYS
def test_the_function_of_a_merge_has_the_settings_of_the_block(compiled, devices, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    seen = []

    def replica() -> None:
        with jax.enable_x64(True), jax.default_matmul_precision("highest"), jax.numpy_dtype_promotion("strict"):
            mine = block_settings()
            context().merge_call(lambda strategy: seen.append(block_settings() == mine))

    run = lambda: strategy.run(replica)  # noqa: E731
    before = block_settings()
    (mr.function(run) if compiled else run)()
    assert seen
    assert all(seen)
    assert block_settings() == before


def test_one_replica_with_64_bits_suffices():
    here = block_settings()
    found = call_with_settings([here, here._replace(is_64_bit=True)], block_settings)
    assert found == BlockSettings(True, here.precision, here.promotion)
    assert block_settings() == here


def test_an_error_ends_the_settings():
    here = block_settings()
    with pytest.raises(ZeroDivisionError):
        call_with_settings([here._replace(is_64_bit=True)], lambda: 1 // 0)
    assert block_settings() == here
