"""Why it is not faster: the reason follows from the parts, and each is found in a program that has it."""

from __future__ import annotations

import re
import time

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.planning import Network, Plan, Prediction, make_plan, observe
from mirrored.planning.bottleneck import bottleneck, explanation

FAST, SLOW = Network(1e13, 1e-9), Network(1e6, 1e-3)


@pytest.mark.parametrize(
    ("compute", "fixed", "exchange", "dispatch", "reading", "word", "told"),
    [
        (10, 1, 1, 1, 0, "compute-bound", "replicas compute for 91% of the step"),
        (10, 1, 12, 1, 0, "communication-bound", r"summing gradients takes 12 ms.*10 ms\. 10 examples on each replica"),
        (10, 8, 1, 1, 0, "too small a batch", r"80% of its work does not depend on the batch"),
        (10, 1, 1, 20, 0, "dispatch-bound", r"Python takes 20 ms to start .*steps_per_call"),
        (10, 1, 1, 1, 30, "input-bound", r"next batch comes after 30 ms\. Input that is 2\.7 times faster"),
    ],
)
def test_bottlenecks_are_named_and_explained(compute, fixed, exchange, dispatch, reading, word, told):
    milliseconds = [value * 1e-3 for value in (compute, fixed, exchange, dispatch, reading)]
    prediction = Prediction(8, 8, *milliseconds)
    assert bottleneck(prediction) == word
    text = explanation(
        Plan(prediction, prediction, 0.01, (prediction,), "replica-batch", FAST, "as given", (2, 1)), prediction
    )
    assert re.search(told, text), text


def training(width, share, waits_seconds=0.0, is_squeezed=False):
    """A program whose only device multiplies a share of the batch by a square matrix, which may be squeezed first."""
    strategy = mr.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w = mr.Variable(np.full((width, width), 0.01, np.float32))

    @mr.function
    def step(x):
        def replica(x):
            with mr.GradientTape() as tape:
                matrix = jnp.tanh(jnp.tanh(jnp.tanh(jnp.tanh(w)))) if is_squeezed else w
                loss = jnp.square(jnp.tanh(x @ matrix)).mean()
            w.assign_sub(0.1 * mr.get_replica_context().all_reduce("mean", tape.gradient(loss, w)))

        strategy.run(replica, args=(x,))

    def train():
        x = np.ones((share, width), np.float32)
        while True:
            if waits_seconds:
                time.sleep(waits_seconds)
            step(x)

    return train


@pytest.mark.parametrize(
    ("case", "network", "word"),
    [
        ({"width": 8, "share": 8, "waits_seconds": 0.02}, FAST, "input-bound"),
        ({"width": 2, "share": 2}, FAST, "dispatch-bound"),
        ({"width": 256, "share": 64}, SLOW, "communication-bound"),
        ({"width": 1024, "share": 16, "is_squeezed": True}, FAST, "too small a batch"),
        ({"width": 256, "share": 2048}, FAST, "compute-bound"),
    ],
)
def test_programs_that_have_each_are_found_out(case, network, word):
    plan = make_plan(observe(training(**case), steps=10), [64], network=network)
    found = plan.predictions[0]
    assert bottleneck(found) == word, found
    assert explanation(plan, found)
