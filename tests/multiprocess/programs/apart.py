"""Workers that go their own ways: ``apart.py HOW``."""

from __future__ import annotations

import json
import sys
import time

import jax.numpy as jnp

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


def elsewhere() -> None:
    if me == 0:
        strategy.run(lambda: 1.0)
    else:
        with strategy.scope():
            mr.Variable(1.0, name="other")


def arguments() -> None:
    mr.function(lambda x: strategy.run(lambda y: y, args=(x,)))(jnp.full(3, float(me)))


def batches() -> None:
    dataset = mr.data.Dataset.range(8).map(lambda x: x + me).batch(4)
    next(iter(strategy.experimental_distribute_dataset(dataset)))


try:
    globals()[sys.argv[1]]()
    print("RESULT", json.dumps(None), flush=True)
except mr.errors.DisagreementError as error:
    print("RESULT", json.dumps([type(error).__name__, error.found]), flush=True)
