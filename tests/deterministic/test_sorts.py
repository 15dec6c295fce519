"""Sorts and other operations with several results compile for several devices with several replicas each.

XLA's partitioner aborted the process if such an operation followed a nested `jax.jit` with several results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

VALUES: dict[str, Callable[[Any], Any]] = {
    "median": jnp.median,
    "quantile": lambda w: jnp.quantile(w, 0.3),
    "median of each row": lambda w: jnp.median(w, axis=1).sum(),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("name", VALUES)
def test_gradients_of_sorted_values_are_those_of_jax(name: str, replicas: int) -> None:
    value = VALUES[name]
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=replicas, deterministic=True)
    with strategy.scope():
        w = mr.Variable(X)

    def replica_step() -> Any:
        with mr.GradientTape() as tape:
            loss = value(w.read_value())
        gradient = tape.gradient(loss, w)
        w.assign_sub(mr.get_replica_context().all_reduce("MEAN", gradient))
        return gradient

    gradients = mr.function(lambda: strategy.run(replica_step))()
    expected = jax.grad(value)(X)
    for gradient in strategy.experimental_local_results(gradients):
        np.testing.assert_array_equal(gradient, expected)
    np.testing.assert_allclose(w, X - expected, rtol=1e-6)


def by_a_sort(w: Any) -> Any:
    return jax.lax.sort((w, jax.lax.iota(np.uint32, 16)), num_keys=1)[1]


def by_a_sort_with_an_unread_result(w: Any) -> Any:
    return jax.lax.sort((w, -w, jax.lax.iota(np.uint32, 16)), num_keys=1)[2]


def by_an_approximate_search(w: Any) -> Any:
    return jax.lax.approx_max_k(w, 16)[1].astype(np.uint32)


def by_random_bits(w: Any) -> Any:
    return jax.lax.rng_bit_generator(w[:4].view(np.uint32), (16,))[1] % 16


def by_a_custom_call(w: Any) -> Any:
    return jax.lax.linalg.lu(w.reshape(4, 4))[2].repeat(4).astype(np.uint32)


OPERATIONS = [by_a_sort, by_a_sort_with_an_unread_result, by_an_approximate_search, by_random_bits, by_a_custom_call]


@jax.jit
def without_nans(w: Any) -> Any:
    has_nans = jnp.broadcast_to((w != w).any()[None], w.shape)
    return jax.lax.select(has_nans, jnp.full(w.shape, jnp.nan, w.dtype), w), has_nans


@pytest.mark.parametrize("indices", OPERATIONS)
def test_operations_with_several_results_follow_a_nested_jit(indices: Callable[[Any], Any]) -> None:
    @jax.jit
    def selected(w: Any) -> Any:
        without, has_nans = without_nans(w)
        return has_nans, indices(without)[:, None]

    def counts(w: Any) -> Any:
        has_nans, chosen = selected(w.ravel())
        counted = jnp.zeros(16).at[chosen].add(jnp.ones(chosen.shape), mode="promise_in_bounds")
        return jax.lax.select(has_nans, jnp.zeros(16), counted)

    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4, deterministic=True)
    with strategy.scope():
        w = mr.Variable(X)
    results = mr.function(lambda: strategy.run(lambda: counts(w.read_value())))()
    for result in strategy.experimental_local_results(results):
        np.testing.assert_array_equal(result, jax.jit(counts)(X))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_sort_outside_of_the_replicas_is_not_one_of_each_device(is_first: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4, deterministic=True)
    with strategy.scope():
        w = mr.Variable(X.ravel())
    ordered = jax.jit(lambda w: jax.lax.sort((w, jax.lax.iota(np.uint32, 16)), num_keys=1))

    @mr.function
    def twice() -> Any:
        before = ordered(w.read_value()) if is_first else None
        inside = strategy.run(lambda: ordered(w.read_value())[1])
        return before or ordered(w.read_value()), inside

    (values, order), inside = twice()
    np.testing.assert_array_equal(values, np.sort(X.ravel()))
    for one in [order, *strategy.experimental_local_results(inside)]:
        np.testing.assert_array_equal(one, np.argsort(X.ravel()))


def test_callbacks_of_replicas_run_in_programs_that_sort() -> None:
    seen: list[float] = []
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4, deterministic=True)

    def replica_step() -> Any:
        values, order = jax.lax.sort((jnp.asarray(X[0]), jax.lax.iota(np.uint32, 4)), num_keys=1)
        jax.debug.callback(lambda value: seen.append(float(value)), values[0])
        return jax.pure_callback(lambda v, o: (v, o), (values, order), values, order)[1]

    results = mr.function(lambda: strategy.run(replica_step))()
    for result in strategy.experimental_local_results(results):
        np.testing.assert_array_equal(result, np.argsort(X[0]))
    jax.effects_barrier()
    assert seen == [X[0].min()] * 4
