"""The schedule of snapshots: the same on all workers, and about 1 % of the time by default."""

from __future__ import annotations

import pytest

from mirrored.elastic.pace import Pace


def steps_of(paces, last, *, step_seconds, cost_seconds):
    """The steps of the snapshots of all workers, whose clocks and costs differ."""
    found = [[] for _ in paces]
    for step in range(1, last + 1):
        for worker, pace in enumerate(paces):
            pace.clock[0] += step_seconds * (1 + worker / 10)
            if pace.is_due(step):
                pace.taken(step, cost_seconds * (1 + worker / 10))
                found[worker].append(step)
    return found


class Workers:
    """Two workers in lock-step, whose proposals meet: the first one waits for that of the second."""

    def __init__(self, fixed, step=0):
        self.paces = []
        for _ in range(2):
            clock = [0.0]
            pace = Pace(fixed, step, lambda own: [own, 37], lambda clock=clock: clock[0])
            pace.clock = clock
            self.paces.append(pace)


def test_a_fixed_number_of_steps():
    first, second = steps_of(Workers(5).paces, 20, step_seconds=1, cost_seconds=9)
    assert first == second == [5, 10, 15, 20]


def test_an_epoch_that_begins_at_a_step_goes_on_from_there():
    assert not Pace(10, 33, lambda own: [own]).is_due(42)
    assert Pace(10, 33, lambda own: [own]).is_due(43)


def test_all_workers_take_the_largest_proposal_after_the_second_snapshot():
    first, second = steps_of(Workers(None).paces, 100, step_seconds=1.0, cost_seconds=0.01)
    assert first == second == [10, 20, 57, 94]


@pytest.mark.parametrize(("cost", "expected"), [(0.0, 10), (0.2, 20), (1.0, 100), (50.0, 1000)])
def test_snapshots_take_about_a_hundredth_of_the_time(cost, expected):
    clock = [0.0]
    pace = Pace(None, 0, lambda own: [own], lambda: clock[0])
    for step in range(1, 21):
        clock[0] += 1.0
        if pace.is_due(step):
            pace.taken(step, cost)
    assert pace.every == expected
