"""A worker that runs much more slowly than the others is named, once."""

from __future__ import annotations

from mirrored.launcher.slow_workers import SlowWorkers


def reports(slow: SlowWorkers, times: dict[int, float], rounds: int = 1) -> list[tuple[int, float]]:
    """The workers that are named while each reports `rounds` times."""
    found = []
    for _ in range(rounds):
        for worker, seconds in times.items():
            factor = slow.report(worker, {"sleep": seconds, "work": 0.001})
            if factor is not None:
                found.append((worker, round(factor, 3)))
    return found


def test_a_slow_worker_is_named_once_and_again_after_it_was_fast():
    slow = SlowWorkers()
    assert reports(slow, {0: 0.2, 1: 0.2, 2: 0.25}, 5) == []
    assert reports(slow, {0: 0.2, 1: 2.0, 2: 0.2}, 2) == [], "it may be for a moment"
    assert reports(slow, {0: 0.2, 1: 2.0, 2: 0.2}, 9) == [(1, 10.0)]
    assert reports(slow, {0: 0.2, 1: 0.2, 2: 0.2}) == []
    assert reports(slow, {0: 0.2, 1: 1.0, 2: 0.2}, 3) == [(1, 5.0)]


def test_all_slow_workers_are_as_fast_as_the_others():
    assert reports(SlowWorkers(), dict.fromkeys(range(4), 3.0), 9) == []


def test_short_probes_and_single_workers_say_nothing():
    slow = SlowWorkers()
    assert reports(slow, {0: 1e-6, 1: 1e-4}, 9) == []
    assert reports(SlowWorkers(), {0: 5.0}, 9) == []


def test_a_slow_computation_counts_too_and_a_lost_worker_does_not():
    slow = SlowWorkers()
    for _ in range(2):
        assert slow.report(0, {"sleep": 0.2, "work": 0.01}) is None
        assert slow.report(1, {"sleep": 0.2, "work": 0.2}) is None
    assert slow.report(1, {"sleep": 0.2, "work": 0.2}) == 20.0
    slow.forget(0)
    assert slow.report(1, {"sleep": 0.2, "work": 0.2}) is None
