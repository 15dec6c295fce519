"""Predicted step times, from known parts."""

from __future__ import annotations

import dataclasses
import math

import pytest

from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError
from mirrored.perf_model import (
    AllReduceBenchmark,
    ComputeBenchmark,
    Instruments,
    Machine,
    Network,
    detect_step,
    make_plan,
)
from mirrored.perf_model.bottleneck import bottleneck
from mirrored.perf_model.measurement import Parts
from mirrored.perf_model.prediction import ASSUMED
from perf_model.steps import PARAMETERS_BYTES, program

FAST, SLOW = Network(1e12, 1e-9), Network(1e6, 1e-3)
MILLI = 1e-3


@dataclasses.dataclass
class Bench:
    """Instruments that say 1 ms of compute for each example and 2 ms whatever the share, half as much again for each
    further device, and 0.5 ms to start each device.
    """

    rehearsed: list = dataclasses.field(default_factory=list)
    summed: list = dataclasses.field(default_factory=list)

    def benchmark_compute(self, step, share, devices):
        self.rehearsed.append((devices, share))
        compute = (2 + share) * (1 + (devices - 1) / 2)
        return ComputeBenchmark((compute + 0.5 * devices) * MILLI, 0.5 * devices * MILLI)

    def benchmark_allreduce(self, devices, payload_bytes, arrays):
        self.summed.append((len(devices), payload_bytes, arrays))
        return AllReduceBenchmark(len(devices), len(devices) * MILLI, 3 * len(devices) * MILLI, payload_bytes)

    @property
    def instruments(self):
        return Instruments(self.benchmark_compute, self.benchmark_allreduce, lambda: Machine(1e11, 1e10))


@pytest.fixture(scope="module")
def observation():
    found = detect_step(program(1), steps=2)
    return dataclasses.replace(found, step_seconds=0.011, dispatch_seconds=0.001, between_seconds=0.0)


@pytest.fixture
def bench():
    return Bench()


def plan(observation, replicas, bench, network=FAST, **options):
    return make_plan(observation, replicas, network=network, instruments=bench.instruments, **options)


def test_one_replica_takes_its_program_and_the_observation_stands_beside_it(observation, bench):
    made = plan(observation, [1], bench)
    assert made.alone.compute_seconds == pytest.approx(10 * MILLI)
    assert made.predictions[0].efficiency == pytest.approx(1.0)
    assert (made.observed_seconds, made.check.replicas, made.check.share) == (0.011, 1, 8)
    assert made.check.compute_seconds == pytest.approx(10 * MILLI)


def test_what_does_not_depend_on_the_batch_is_found_from_two_shares(observation, bench):
    found = plan(observation, [8], bench).predictions[0]
    assert set(bench.rehearsed) == {(1, 8), (1, 2)}
    assert found.fixed_seconds == pytest.approx(2 * MILLI, rel=0.05)


@pytest.mark.long
def test_a_fast_network_scales_and_a_slow_one_does_not(observation, bench):
    fast, slow = (plan(observation, [64, 8, 8], bench, network).predictions for network in (FAST, SLOW))
    assert [one.replicas for one in fast] == [8, 64]
    assert all(one.efficiency > 0.85 for one in fast)
    assert slow[0].efficiency > slow[1].efficiency
    assert slow[1].efficiency < 0.5
    assert bottleneck(slow[1]) == "communication-bound"


@pytest.mark.first(1)
@pytest.mark.parametrize("shared", [False, True])
def test_a_fixed_global_batch_has_as_many_examples_on_any_number_of_replicas(observation, bench, shared):
    """Eight examples are three on the fullest of three replicas, and one on eight of 64."""
    reading = dataclasses.replace(observation, between_seconds=0.004)
    kept = plan(reading, [1, 3, 64], bench, keeps="global-batch", shared=shared).predictions
    assert [one.examples_per_second * one.step_seconds for one in kept] == pytest.approx([8, 8, 8])
    assert not shared or [one.input_seconds for one in kept] == pytest.approx([0.004] * 3)


def test_keeping_the_global_batch_makes_shares_small_and_measures_some_of_them(observation, bench):
    kept = plan(observation, [2, 4, 8, 64], bench, keeps="global-batch").predictions
    assert [one.share for one in kept] == [4, 2, 1, 1]
    assert {share for devices, share in bench.rehearsed if devices == 1} == {8, 4, 2, 1}
    assert kept[0].compute_seconds == pytest.approx(6 * MILLI, rel=0.05)
    assert kept[3].efficiency < 0.5


@pytest.mark.long
def test_shares_between_those_that_were_measured_lie_on_the_line_between(observation, bench):
    kept = plan(observation, [1, 2, 3, 4, 5, 6, 7, 8], bench, keeps="global-batch").predictions
    assert len(bench.rehearsed) <= 6
    for one in kept:
        assert one.compute_seconds == pytest.approx((2 + one.share) * MILLI, rel=0.05)


def test_replicas_that_share_this_machine_are_rehearsed_together(observation, bench):
    found = plan(observation, [1, 2, 4], bench, network=None, shared=True).predictions
    assert {(1, 8), (2, 8), (4, 8)} < set(bench.rehearsed)
    assert {(devices, arrays) for devices, _, arrays in bench.summed} == {(2, 2), (4, 2)}
    assert found[0].exchange_seconds == 0.0
    for one in found[1:]:
        assert one.compute_seconds == pytest.approx(10 * (1 + (one.replicas - 1) / 2) * MILLI, rel=0.05)
        # 0.5 ms of the observed 1 ms go to starting the only device, the others are Python's.
        assert one.dispatch_seconds == pytest.approx((0.5 + 0.5 * one.replicas) * MILLI)
        assert one.exchange_seconds == pytest.approx(3 * one.replicas * MILLI)
        assert one.step_seconds == pytest.approx(one.device_seconds + one.dispatch_seconds)


def test_the_step_itself_is_not_run_for_its_prediction(observation, bench, monkeypatch):
    def never(self, *args, **kwargs):
        raise AssertionError("the compiled step was called")

    monkeypatch.setattr(Function, "__call__", never)
    assert plan(observation, [2, 4], bench, shared=True).predictions[1].replicas == 4


def test_replicas_that_share_a_machine_of_accelerators_may_be_fewer_than_its_devices(observation, bench, monkeypatch):
    """Only the all-reduces of these replicas are measured, not that of all eight devices."""
    monkeypatch.setattr(Parts, "can_estimate_network", True)
    made = plan(observation, [1, 4], bench, network=None, shared=True)
    assert {devices for devices, _, _ in bench.summed} == {4}
    assert made.network is None
    assert made.predictions[1].exchange_seconds == pytest.approx(12 * MILLI)


def test_more_replicas_than_devices_take_turns(observation, bench):
    eight, more = plan(observation, [8, 32], bench, network=None, shared=True).predictions
    assert max(devices for devices, _ in bench.rehearsed) == 8
    assert more.compute_seconds == pytest.approx(4 * eight.compute_seconds, rel=0.01)
    assert more.exchange_seconds == pytest.approx(4 * eight.exchange_seconds)


def test_a_faster_device_computes_faster(observation, bench):
    slow, fast = (plan(observation, [8], bench, speed=speed).predictions[0] for speed in (1.0, 2.0))
    assert fast.compute_seconds == pytest.approx(slow.compute_seconds / 2)


def test_a_network_that_nobody_gave_is_assumed_and_said_to_be(observation, bench):
    made = plan(observation, [8], bench, network=None)
    assert made.network == ASSUMED
    assert made.network_source.startswith("assumed")
    assert bench.summed == []
    assert plan(observation, [8], bench).network_source == "as given"


def test_a_step_observed_on_several_devices_is_checked_there(bench):
    found = dataclasses.replace(detect_step(program(2), steps=2), dispatch_seconds=0.0)
    made = plan(found, [64], bench)
    assert bench.summed == [(2, PARAMETERS_BYTES, 2)]
    assert made.check.exchange_seconds == pytest.approx(6 * MILLI)
    assert made.check.compute_seconds == pytest.approx(15 * MILLI, rel=0.05)


def test_measurements_are_announced_with_their_number(observation, bench):
    told = []
    plan(observation, [2], bench, network=None, shared=True, report=lambda *one: told.append(one))
    assert [number for _, number, _ in told] == list(range(len(told)))
    assert {total for _, _, total in told} == {len(told)}
    assert told[-1][0] == "all-reduces over 2 devices"


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": [0]},
        {"replicas": []},
        {"replicas": [2], "keeps": "batch"},
        {"replicas": [2], "speed": 0.0},
        {"replicas": [2], "speed": math.nan},
    ],
)
def test_nonsense_is_refused(observation, bench, options):
    with pytest.raises(ArgumentError, match=r"make_plan: replicas=.*\n.*rule.*at least 1"):
        plan(observation, bench=bench, **options)


def test_a_call_with_several_steps_starts_the_devices_once(observation, bench):
    several = dataclasses.replace(observation, dispatch_seconds=0.25 * MILLI, steps_per_call=4)
    made = plan(several, [1], bench, network=None, shared=True)
    assert made.steps_per_call == 4
    assert made.predictions[0].dispatch_seconds == pytest.approx(0.25 * MILLI)
    assert made.predictions[0].compute_seconds == pytest.approx(10 * MILLI)
