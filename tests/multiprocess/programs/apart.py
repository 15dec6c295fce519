"""Workers that go their own ways: ``apart.py HOW``."""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import mirrored as mr

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id


def variables() -> None:
    with strategy.scope():
        mr.Variable(jnp.zeros(2 + me), name="w")


def chief_alone() -> None:
    if me == 0:
        strategy.run(lambda: 1.0)
    time.sleep(60)  # an end would be noticed at once, by the watch


def _counter() -> mr.Variable:
    with strategy.scope():
        return mr.Variable(0.0, synchronization=mr.VariableSynchronization.ON_READ, aggregation="SUM", name="counter")


def reads_alone() -> None:
    counter = _counter()
    if me == 0:
        counter.numpy()
    time.sleep(60)


def reads_apart() -> None:
    counter = _counter()
    if me == 0:
        counter.numpy()
    else:
        strategy.run(lambda: 1.0)


def elsewhere() -> None:
    if me == 0:
        strategy.run(lambda: 1.0)
    else:
        with strategy.scope():
            mr.Variable(1.0, name="other")


def arguments() -> None:
    mr.function(lambda x: strategy.run(lambda y: y, args=(x,)))(jnp.full(3, float(me)))


def later_arguments() -> None:
    step = mr.function(lambda x: strategy.run(lambda y: y, args=(x,)))
    for number in range(64):
        step(jnp.float32(me if number > 20 else 0))


def taped_arguments() -> None:
    step = mr.function(lambda x: strategy.run(lambda y: y * 2, args=(x,)))
    x = jnp.full(3, float(me))
    with mr.GradientTape() as tape:
        tape.watch(x)
        step(x)


def captured() -> None:
    own = jnp.full(2, float(me))
    mr.function(lambda: strategy.run(lambda: own + 1))()


def captured_inside() -> None:
    own = jnp.full(2, float(me))
    inner = jax.jit(lambda x: x + own)
    mr.function(lambda x: strategy.run(lambda y: inner(y), args=(x,)))(jnp.zeros(2))


def plain_variable() -> None:
    own = mr.Variable(jnp.full(2, float(me)), name="own")
    mr.function(lambda: strategy.run(lambda: own + 1))()


def later_variable() -> None:
    rate = mr.Variable(0.5, name="rate")
    with strategy.scope():
        weight = mr.Variable(1.0, name="weight")
    step = mr.function(lambda: strategy.run(lambda: weight.assign_sub(rate)))
    for number in range(64):
        step()
        if number == 20:
            rate.assign(0.5 + me)


def same_names() -> None:
    with strategy.scope():
        first, second = (mr.Variable(0.0, name="w") for _ in range(2))
    strategy.run(lambda: (first.assign(float(me)), second.assign(1.0)))


def plain_same_names() -> None:
    own, _ = plain = [mr.Variable(jnp.full(2, float(value)), name="w") for value in (me, 0)]
    mr.function(lambda: strategy.run(lambda: own + plain[1]))()


def _reduced(parts: list[np.ndarray], axis: int | None = None) -> None:
    """Each worker reduces its part outside of the run."""
    value = strategy.run(lambda: jnp.asarray(parts[mr.get_replica_context().replica_id_in_sync_group]))
    strategy.reduce("SUM", value, axis=axis)


def reduced_types_outside() -> None:
    _reduced([np.ones(2, np.float32), np.ones(2, np.int32)])


def reduced_sizes_outside() -> None:
    _reduced([np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)])


def reduced_rows_outside() -> None:
    _reduced([np.ones((2, 3), np.float32), np.ones((1, 2), np.float32)], axis=0)


def assigned_sizes() -> None:
    with strategy.scope():
        mean = mr.Variable(jnp.zeros(4), aggregation="MEAN")
    mean.assign(strategy.run(lambda: jnp.zeros((2, 2) if me else 4)))


def other_variables() -> None:
    with strategy.scope():
        variables = [mr.Variable(0.0, name="w") for _ in range(2)]
        optimizer = mr.optimizers.SGD(1.0)
    strategy.run(lambda: optimizer.apply_gradients([(jnp.ones(()), one) for one in variables[me:]]))


def updates_another() -> None:
    with strategy.scope():
        variables = [mr.Variable(0.0) for _ in range(2)]
        optimizer = mr.optimizers.SGD(1.0)
    strategy.run(lambda: optimizer.apply_gradients([(jnp.ones(()), variables[me])]))


def creates_in_another_order() -> None:
    plain = [mr.Variable(0.0, name="w") for _ in range(2)]
    first, second = reversed(plain) if me else plain
    optimizer = mr.optimizers.SGD(1.0)
    strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(1.0), first), (jnp.float32(10.0), second)]))


def assigns_another() -> None:
    with strategy.scope():
        variables = [mr.Variable(0.0, name="w") for _ in range(2)]
    strategy.run(lambda: variables[me].assign(1.0))


def returned_number() -> None:
    strategy.run(lambda: {"loss": 0.5 + me}, out_specs=PartitionSpec())


def returned_argument() -> None:
    strategy.run(lambda x: x, args=(jnp.float32(me),), out_specs=PartitionSpec())


def reduced_shapes() -> None:
    strategy.run(lambda: mr.get_replica_context().all_reduce("SUM", [jnp.zeros(2), jnp.zeros(2 + me)]))


def key() -> None:
    mr.function(lambda k: strategy.run(lambda j: jax.random.bits(j), args=(k,)))(jax.random.key(me))


def batches() -> None:
    dataset = mr.data.Dataset.range(8).map(lambda x: x + me).batch(4)
    next(iter(strategy.experimental_distribute_dataset(dataset)))


def later_batches() -> None:
    rows = np.arange(40)
    rows[30] += me  # as a file that is out of date on one machine
    dataset = mr.data.Dataset.from_tensor_slices(rows).batch(4)
    for batch in strategy.experimental_distribute_dataset(dataset):
        strategy.run(lambda x: x.sum(), args=(batch,))


try:
    globals()[sys.argv[1]]()
    print("RESULT", json.dumps(None), flush=True)
except (mr.errors.DisagreementError, mr.errors.StructureError) as error:
    print("RESULT", json.dumps([type(error).__name__, error.found]), flush=True)
