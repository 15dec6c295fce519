"""Predicted step times, and the reasons given for them."""

from __future__ import annotations

import dataclasses
import re

import pytest

from mirrored.errors import ArgumentError
from mirrored.planning import Machine, Network, Plan, Prediction, make_plan, observe
from mirrored.planning.bottleneck import bottleneck, explanation
from planning.steps import program

FAST, SLOW = Network(1e12, 1e-9), Network(1e6, 1e-3)
MACHINE = Machine(1e11, 1e10)


@pytest.fixture(scope="module")
def observation():
    found = observe(program(1), steps=2)
    return dataclasses.replace(found, step_seconds=0.010, dispatch_seconds=0.001, between_seconds=0.0)


def plan(observation, replicas, network=FAST, **options):
    return make_plan(observation, replicas, network=network, machine=MACHINE, **options)


def test_one_replica_takes_what_was_observed(observation):
    made = plan(observation, [1])
    assert made.alone.compute_seconds == pytest.approx(0.009)
    assert made.predictions[0].efficiency == pytest.approx(1.0)


def test_a_fast_network_scales_and_a_slow_one_does_not(observation):
    fast, slow = (plan(observation, [64, 8, 8], network).predictions for network in (FAST, SLOW))
    assert [one.replicas for one in fast] == [8, 64]
    assert all(one.efficiency > 0.85 for one in fast)
    assert slow[0].efficiency > slow[1].efficiency
    assert slow[1].efficiency < 0.5
    assert bottleneck(slow[1]) == "communication-bound"


def test_keeping_the_global_batch_makes_shares_small(observation):
    kept = plan(observation, [2, 8, 64], keeps="global-batch").predictions
    assert [one.share for one in kept] == [4, 1, 1]
    assert kept[0].compute_seconds > kept[1].compute_seconds >= kept[1].fixed_seconds
    assert kept[2].efficiency < 0.3


def test_replicas_that_share_this_machine_take_turns(observation):
    alone, shared = (plan(observation, [8], shared=shared).predictions[0] for shared in (False, True))
    assert shared.compute_seconds == pytest.approx(8 * alone.compute_seconds)
    assert plan(observation, [8], speed=2.0).predictions[0].compute_seconds == pytest.approx(alone.compute_seconds / 2)


@pytest.mark.parametrize(
    "options", [{"replicas": [0]}, {"replicas": [2], "keeps": "batch"}, {"replicas": [2], "speed": 0.0}]
)
def test_nonsense_is_refused(observation, options):
    with pytest.raises(ArgumentError, match=r"make_plan: replicas=.*\n.*rule.*1 or more"):
        plan(observation, **options)


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
    text = explanation(Plan(prediction, (prediction,), "replica-batch", FAST, (2, 1)), prediction)
    assert re.search(told, text), text
