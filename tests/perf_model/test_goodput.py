"""The prediction of goodput: against a simulation of the job, at its limits, and its optimum."""

from __future__ import annotations

import math
import random

import pytest

from mirrored.errors import ArgumentError
from mirrored.perf_model import FailureCosts, best_interval, goodput_of, predict_goodput
from mirrored.perf_model.goodput import DISK, ELASTIC, MEMORY

COSTS = FailureCosts(
    checkpoint_seconds=2.0,
    write_seconds=10.0,
    snapshot_seconds=0.02,
    restart_seconds=60.0,
    recovery_seconds=2.0,
    join_seconds=70.0,
    pause_seconds=2.0,
)


def simulated(interval: float, save: float, recovery: float, failure: float) -> float:
    """The goodput of a job whose failures are drawn at random."""
    moments = random.Random(0)
    now, counted, is_down = 0.0, 0.0, False
    next_failure = moments.expovariate(1 / failure)
    while now < 60_000 * failure:
        end = now + (recovery if is_down else interval + save)
        if end > next_failure:
            now, is_down = next_failure, True
            next_failure += moments.expovariate(1 / failure)
        else:
            now, counted, is_down = end, counted + (0.0 if is_down else interval), False
    return counted / now


@pytest.mark.parametrize(
    ("interval", "save", "recovery", "failure"),
    [(100.0, 5.0, 30.0, 1000.0), (20.0, 0.1, 2.0, 60.0), (300.0, 20.0, 100.0, 200.0)],
)
def test_the_formula_is_the_mean_of_a_simulation(interval, save, recovery, failure):
    assert goodput_of(interval, save, recovery, failure) == pytest.approx(
        simulated(interval, save, recovery, failure), rel=0.02
    )


def test_limits():
    assert goodput_of(100.0, 0.0, 0.0, 1e9) == pytest.approx(1.0, abs=1e-6)
    assert goodput_of(100.0, 25.0, 0.0, 1e9) == pytest.approx(0.8, abs=1e-6), "only the saves cost time"
    assert goodput_of(1e6, 1.0, 1e6, 1.0) == 0.0, "a job that is never done with a step"


@pytest.mark.parametrize(("save", "failure"), [(2.0, 600.0), (30.0, 14400.0), (100.0, 300.0)])
def test_the_best_interval_is_best(save, failure):
    best = best_interval(save, failure)
    around = [goodput_of(best * factor, save, 10.0, failure) for factor in (0.7, 0.85, 1.0, 1.2, 1.4)]
    assert max(around) == around[2]
    assert best == pytest.approx(math.sqrt(2 * save * failure), rel=0.5), "Young's optimum is its first term"


def test_ways_to_recover():
    disk, memory, elastic = predict_goodput(0.1, 600.0, COSTS, fewer_speed=0.75)
    assert [one.way for one in (disk, memory, elastic)] == [DISK, MEMORY, ELASTIC]
    assert disk.goodput < memory.goodput < elastic.goodput < 1
    assert disk.interval_seconds == pytest.approx(best_interval(2.0, 600.0), abs=0.1)
    assert memory.interval_steps == 20, "snapshots take 1 % of the time"
    assert disk.lost_seconds == pytest.approx(70.0 + disk.interval_seconds / 2)
    whole = goodput_of(2.0, 0.02, 4.0, 600.0)
    assert elastic.goodput == pytest.approx(whole * (1 - 0.25 * (1 - math.exp(-70 / 600))))


def test_given_intervals_and_checkpoints_that_take_long_to_write():
    disk, memory, _ = predict_goodput(0.5, 600.0, COSTS, checkpoint_every_seconds=30.0, snapshot_every_steps=4)
    assert (disk.interval_steps, memory.interval_steps) == (60, 4)
    assert predict_goodput(0.5, 1.0, COSTS)[0].interval_seconds == 10.0


@pytest.mark.parametrize(
    ("failure_seconds", "options"),
    [
        (0.0, {}),
        (math.nan, {}),
        (3600.0, {"snapshot_every_steps": 0}),
        (3600.0, {"checkpoint_every_seconds": 0.0}),
        (3600.0, {"fewer_speed": 2.0}),
    ],
)
def test_impossible_times_are_refused(failure_seconds, options):
    with pytest.raises(ArgumentError, match="must be positive"):
        predict_goodput(0.1, failure_seconds, COSTS, **options)
