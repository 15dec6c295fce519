"""The warning about input that is slower than the step."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from mirrored.data.feed import InputStats, StallWatch


@pytest.fixture
def report(caplog: pytest.LogCaptureFixture) -> Any:
    """Returns the log of a `StallWatch` after windows of 3 s with the given waiting times and input times."""

    def after(*windows: dict[str, float]) -> list[str]:
        stats = InputStats()
        watch, start = StallWatch(stats), time.perf_counter()
        with caplog.at_level(logging.WARNING, logger="mirrored.data"):
            for number, window in enumerate(windows):
                for name, seconds in window.items():
                    setattr(stats, name, getattr(stats, name) + seconds)
                watch.after_batch(start + 3.01 * (number + 1))
        return [record.getMessage() for record in caplog.records]

    return after


def test_it_says_how_long_and_for_what(report: Any) -> None:
    window = {"wait_seconds": 2.1, "read_seconds": 0.2, "map_seconds": 1.8, "transfer_seconds": 0.1}
    expected = (
        "the step waited 2.1 s of the last 3.0 s for input, mostly for map (read 0.2 s, map 1.8 s, transfer 0.1 s)"
    )
    assert report(window) == [expected]


@pytest.mark.parametrize("part", ["read", "map", "transfer"])
def test_the_longest_part_of_the_window_is_named(report: Any, part: str) -> None:
    # Before, another part took longer.
    other = {"read": "map", "map": "transfer", "transfer": "read"}[part]
    (message,) = report({f"{other}_seconds": 2.0}, {"wait_seconds": 2.0, f"{part}_seconds": 1.9})
    assert f"mostly for {part} (" in message


def test_once_is_enough_and_short_waits_are_none(report: Any) -> None:
    assert report({"wait_seconds": 1.0}) == []
    assert len(report({"wait_seconds": 2.0}, {"wait_seconds": 2.5}, {"wait_seconds": 3.0})) == 1
