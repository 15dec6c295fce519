"""A tape around a run records what replicas compute before and after an update, and not the update itself."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.tape import unrecorded

RATE = 0.25


class Model:
    """A variable, and ways to subtract the sum of all replicas' gradients from it."""

    def __init__(self):
        self.w = mr.Variable(jnp.array([1.0, 2.0]))
        self.optimizer = mr.optimizers.SGD(RATE)
        self.accumulator = mr.GradientAccumulator([self.w])
        self.optimizer.build([self.w])

    def apply(self, gradient):
        self.optimizer.apply_gradients([(gradient, self.w)])

    def accumulate(self, gradient):
        self.accumulator.add([gradient * mr.get_strategy().num_replicas_in_sync], count=1)
        self.accumulator.apply(self.optimizer)

    def suspended_assign(self, gradient):
        with unrecorded():
            self.w.assign_sub(RATE * mr.get_replica_context().all_reduce("SUM", gradient))

    def suspended_merge(self, gradient):
        def merged(strategy, gradient):
            return self.w.assign_sub(RATE * strategy.reduce("SUM", gradient, axis=None))

        with unrecorded():
            mr.get_replica_context().merge_call(merged, args=(gradient,))

    def assign(self, gradient):
        self.w.assign_sub(RATE * mr.get_replica_context().all_reduce("SUM", gradient))


UPDATES = ("apply", "accumulate", "suspended_merge", "suspended_assign", "assign")


def replica_function(model, update, *, inside):
    def replica(x):
        with mr.GradientTape() as tape:
            loss = jnp.sum(model.w * x)
            if inside:
                update(x)
        gradient = tape.gradient(loss, model.w)
        if not inside:
            update(gradient)
        return loss + jnp.sum(model.w**2)

    return replica


@pytest.mark.first(4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("inside", [False, True], ids=["after the replica's tape", "in the replica's tape"])
@pytest.mark.parametrize(("replicas", "devices"), [(3, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("update", UPDATES)
def test_records_reads_around_the_update(update, replicas, devices, inside, compiled):
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=replicas)
    with strategy.scope():
        model = Model()
    replica = replica_function(model, getattr(model, update), inside=inside)
    x = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.full(2, context.replica_id_in_sync_group + 1.0)
    )

    def step(x):
        with mr.GradientTape() as outer, mr.GradientTape() as tape:
            tape.watch(x)
            loss = strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)
            squared = loss * loss
        return loss, tape.gradient(loss, model.w), outer.gradient(squared, model.w)

    loss, gradient, outer_gradient = (mr.function(step) if compiled else step)(x)

    total = replicas * (replicas + 1) / 2
    new = np.array([1.0, 2.0]) - RATE * total
    wanted = total * 3.0 + replicas * np.sum(new**2)
    np.testing.assert_allclose(model.w.read_value(), new)
    np.testing.assert_allclose(loss, wanted)
    np.testing.assert_allclose(gradient, total + 2 * replicas * new, rtol=1e-6)
    np.testing.assert_allclose(outer_gradient, 2 * wanted * np.asarray(gradient), rtol=1e-6)


def test_names_replicas_that_suspend_tapes_differently():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica():
        def reduced():
            return mr.get_replica_context().all_reduce("SUM", jnp.ones(2))

        if mr.get_replica_context().replica_id_in_sync_group:
            return reduced()
        with unrecorded():
            return reduced()

    with mr.GradientTape(), pytest.raises(mr.errors.MergeError, match="record it in replica 1, and are suspended in"):
        strategy.run(replica)
