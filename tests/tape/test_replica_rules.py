"""Functions with derivative rules of their own in eager replicas, with a tape around the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ContextError, TapeError

LAYOUTS = pytest.mark.parametrize("layout", [(1, 1), (2, 2), (2, 1), (3, 2), (4, 2)], ids=str)
Loss = Callable[[Any], Any]


def context() -> Any:
    return mr.get_replica_context()


def by_vjp(function: Loss, rule: Callable[[Any, Any], Any]) -> Loss:
    made = jax.custom_vjp(function)
    made.defvjp(lambda z: (function(z), z), lambda z, upstream: (rule(z, upstream),))
    return made


def by_custom_gradient(function: Loss, rule: Callable[[Any, Any], Any]) -> Loss:
    return mr.custom_gradient(lambda z: (function(z), lambda upstream: rule(jax.lax.stop_gradient(z), upstream)))


KINDS = pytest.mark.parametrize("kind", [by_vjp, by_custom_gradient])


class Program:
    """Gradients of a loss of each replica, by a tape in the replica function or around the run."""

    def __init__(self, layout: tuple[int, int], loss: Loss) -> None:
        self.replicas, devices = layout
        self.strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=self.replicas)
        with self.strategy.scope():
            self.w = mr.Variable([1.0, 2.0, 3.0])
        self.x = self.strategy.experimental_distribute_values_from_function(
            lambda context: jnp.arange(1.0, 4.0) * (1 + context.replica_id_in_sync_group)
        )
        self.loss = loss

    def inside(self) -> Any:
        def replica(x: Any) -> Any:
            with mr.GradientTape() as tape:
                value = self.loss(x * self.w)
            return tape.gradient(value, self.w)

        return np.asarray(self.strategy.reduce("SUM", self.strategy.run(replica, args=(self.x,)), axis=None))

    def around(self, tapes: int = 1) -> Any:
        with mr.GradientTape() as outer, mr.GradientTape() as tape:
            parts = self.strategy.run(lambda x: self.loss(x * self.w), args=(self.x,))
            value = self.strategy.reduce("SUM", parts, axis=None)
        return np.asarray((outer if tapes == 2 else tape).gradient(value, self.w))

    def compiled_around(self) -> Any:
        @mr.function
        def gradient(x: Any) -> Any:
            with mr.GradientTape() as tape:
                parts = self.strategy.run(lambda x: self.loss(x * self.w), args=(x,))
                value = self.strategy.reduce("SUM", parts, axis=None)
            return tape.gradient(value, self.w)

        return np.asarray(gradient(self.x))


@pytest.mark.first(24)
@LAYOUTS
@KINDS
@pytest.mark.parametrize("tapes", [1, 2])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "merge_call", "two"])
def test_a_collective_in_the_function(layout: Any, kind: Any, collective: str, tapes: int) -> None:
    """The other replicas ran while one was in the function, and the tape recorded nothing of them."""

    def combined(z: Any) -> Any:
        z = jax.lax.stop_gradient(z)  # so that the rule is the derivative, which the outer one of two tapes computes
        if collective == "all_gather":
            return context().all_gather(z[None], axis=0).sum()
        if collective == "merge_call":
            return jnp.sum(context().merge_call(lambda strategy, z: strategy.reduce("SUM", z, axis=None), args=(z,)))
        total = jnp.sum(context().all_reduce("SUM", z))
        return context().all_reduce("MEAN", total) if collective == "two" else total

    function = kind(lambda z: jnp.sum(z**2) + combined(z), lambda z, upstream: 2 * z * upstream)
    program = Program(layout, lambda z: function(jnp.sin(z)) + jnp.sum(z))
    np.testing.assert_allclose(program.around(tapes), program.inside(), rtol=1e-6)


@LAYOUTS
@KINDS
def test_one_replica_is_in_the_function_and_the_others_are_not(layout: Any, kind: Any) -> None:
    def total(z: Any) -> Any:
        return context().all_reduce("SUM", jax.lax.stop_gradient(jnp.sum(z)))

    function = kind(lambda z: jnp.sum(z**2) * total(z), lambda z, upstream: 2 * z * upstream)

    def loss(z: Any) -> Any:
        z = jnp.sin(z)
        return function(z) if context().replica_id_in_sync_group == 0 else jnp.sum(z**2) * total(z)

    program = Program(layout, loss)
    w, xs = np.float32([1, 2, 3]), [np.arange(1.0, 4.0) * (1 + replica) for replica in range(layout[0])]
    zs = [np.sin(x * w) for x in xs]
    factors = [1.0, *[np.sum(zs)] * (layout[0] - 1)]
    expected = sum(2 * z * np.cos(x * w) * x * factor for x, z, factor in zip(xs, zs, factors, strict=True))
    np.testing.assert_allclose(program.around(), expected, rtol=1e-5)


@LAYOUTS
@KINDS
def test_a_rule_has_the_index_of_its_replica(layout: Any, kind: Any) -> None:
    """It ran after the run, where the index was 0."""

    def rule(z: Any, upstream: Any) -> Any:
        return z * upstream * (10.0 + context().replica_id_in_sync_group) * context().num_replicas_in_sync

    program = Program(layout, kind(lambda z: jnp.sum(z**2), rule))
    np.testing.assert_allclose(program.around(), program.inside(), rtol=1e-6)


@LAYOUTS
@KINDS
def test_a_rule_reads_the_component_of_its_replica(layout: Any, kind: Any) -> None:
    program = Program(layout, jnp.sum)
    with program.strategy.scope():
        count = mr.Variable(
            0.0, trainable=False, synchronization=mr.VariableSynchronization.ON_READ,
            aggregation=mr.VariableAggregation.SUM,
        )  # fmt: skip
    program.strategy.run(lambda: count.assign(1.0 + context().replica_id_in_sync_group))
    program.loss = kind(lambda z: jnp.sum(z), lambda z, upstream: z * upstream * count.read_value())
    np.testing.assert_allclose(program.around(), program.inside(), rtol=1e-6)


@pytest.mark.first(4)
@LAYOUTS
@KINDS
def test_a_collective_in_a_rule_is_refused_after_the_run(layout: Any, kind: Any) -> None:
    """It was that of the default strategy, which has one replica: the gradients were not summed."""
    function = kind(lambda z: jnp.sum(z**2), lambda z, upstream: context().all_reduce("SUM", 2 * z * upstream))
    program = Program(layout, function)
    inside = program.inside()
    if layout[0] == 1:
        np.testing.assert_allclose(program.around(), inside, rtol=1e-6)
        return
    with pytest.raises(ContextError, match=r"all_reduce: it was called outside its run[\s\S]*tape"):
        program.around()
    with pytest.raises(TapeError, match="open the tape inside the function given to strategy.run"):
        program.compiled_around()
