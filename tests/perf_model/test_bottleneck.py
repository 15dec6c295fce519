"""The bottleneck follows from the parts of a step, and each kind is found in a program that has it."""

from __future__ import annotations

import re
import time

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.perf_model import Network, Prediction, ScalingPlan, detect_step, make_plan
from mirrored.perf_model.bottleneck import bottleneck, breakdown, explanation, summary

FAST, SLOW = Network(1e13, 1e-9), Network(1e6, 1e-3)


@pytest.mark.parametrize(
    ("compute", "fixed", "exchange", "dispatch", "reading", "word", "told"),
    [
        (
            10,
            1,
            1,
            1,
            0,
            "compute-bound",
            r"^compute 91%, exchange 9% \(overlapped: dispatch 9%\); the devices compute",
        ),
        (
            10,
            1,
            12,
            1,
            0,
            "communication-bound",
            r"^compute 45%, exchange 55% \(overlapped: dispatch 5%\); "
            r"summing gradients takes 12 ms.*10 ms\. 10 examples on each replica",
        ),
        (10, 8, 1, 1, 0, "too small a batch", r"80% of its work does not depend on the batch"),
        (
            10,
            1,
            1,
            20,
            0,
            "dispatch-bound",
            r"^dispatch 100%, input 0% \(overlapped: compute 50%, exchange 5%\); "
            r"Python takes 20 ms to start .*steps_per_call",
        ),
        (
            10,
            1,
            1,
            1,
            30,
            "input-bound",
            r"^dispatch 3%, input 97% \(overlapped: compute 32%, exchange 3%\); .*"
            r"the next batch 30 ms\. Input that is 3\.0 times faster",
        ),
        (10, 1, 1, 8, 9, "input-bound", r"the next batch 9 ms\. Input that is 3\.0 times faster"),
        (5, 1, 1, 8, 9, "input-bound", r"the next batch 9 ms\. Prefetched input would be hidden"),
    ],
)
def test_bottlenecks_are_named_and_explained(compute, fixed, exchange, dispatch, reading, word, told):
    milliseconds = [value * 1e-3 for value in (compute, fixed, exchange, dispatch, reading)]
    prediction = Prediction(8, 8, *milliseconds)
    assert bottleneck(prediction) == word
    text = explanation(
        ScalingPlan(prediction, prediction, 0.01, (prediction,), "replica-batch", FAST, "as given", (2, 1)), prediction
    )
    assert re.search(told, text), text


def test_parts_that_determine_the_step_time_add_up():
    shared = Prediction(8, 8, 64e-3, 1e-3, 31e-3, 5e-3, 0.0, shared=True)
    assert summary(shared) == "compute 64%, exchange 31%, dispatch 5%"
    assert sum(breakdown(shared).values()) == pytest.approx(1.0)


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
@pytest.mark.first(1)
@pytest.mark.long
def test_programs_that_have_each_are_found_out(case, network, word):
    for _ in range(3):  # other programs on the machine can distort a measurement
        plan = make_plan(detect_step(training(**case), steps=10), [64], network=network)
        found = plan.predictions[0]
        if bottleneck(found) == word:
            break
    assert bottleneck(found) == word, found
    assert explanation(plan, found)
