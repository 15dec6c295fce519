from __future__ import annotations

import random

import chaos
import pytest


@pytest.mark.parametrize(("steps", "kills"), [(300, 30), (80, 6), (20, 15), (10, 1)])
def test_as_many_kills_as_asked_for_are_planned_within_the_steps(steps, kills):
    for seed in range(50):
        planned = chaos.plan(random.Random(seed), steps=steps, kills=kills)
        marks = [one.step for one in planned if one.step is not None]
        assert len(planned) == kills
        assert planned[0].step is not None, "a kill while the workers start comes after another one"
        assert marks == sorted(set(marks))
        assert marks[0] >= 2
        assert marks[-1] + chaos.LEASH_STEPS < steps, "the run cannot end before its last kill"
        assert all(0 <= one.delay_seconds <= 2.5 for one in planned)


def test_some_are_killed_while_they_start():
    planned = chaos.plan(random.Random(0), steps=300, kills=30)
    assert sum(one.step is None for one in planned) == 6


def test_more_kills_than_steps_are_refused():
    with pytest.raises(ValueError, match="30 kills do not fit into 20 steps"):
        chaos.plan(random.Random(0), steps=20, kills=30)
