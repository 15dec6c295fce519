"""Restarts of several workers: from damaged folders, from a folder of another job, on other numbers of processes."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

import mirrored as mr
from checkpoint.damages import HOW
from cluster.jobs import PROGRAMS, SOURCE, run
from mirrored.checkpoint.series_lock import claim

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]
TESTS = Path(__file__).parents[1]


@pytest.mark.long
def test_all_workers_restore_the_same_older_checkpoint_or_none_saves(tmp_path):
    lock = claim(tmp_path / "taken", "ckpt", "another job")
    environment = {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)])}
    workers = run("restoring", [1, 1], tmp_path, str(tmp_path), *HOW, **environment)
    assert lock is not None
    for index, found in enumerate(workers):
        for how in HOW:
            step, is_whole, told = found[how]
            assert (step, is_whole) == (2, True), how
            assert "ckpt-2 was restored because newer checkpoints are damaged" in told[0], how
            assert "ckpt-3" in told[0], how
        step, is_whole, (told,) = found["one worker"]
        assert (step, is_whole) == (2, True)
        assert ("worker 1: other bytes" if index == 0 else "other bytes") in told
        text, is_unharmed = found["taken"]
        assert f"process {os.getpid()} on " in text
        assert text.startswith("worker 0: ") == (index == 1)
        assert is_unharmed


def test_a_restore_that_fails_on_one_worker_restores_nothing_on_any(tmp_path):
    """The programs catch the error and go on with equal values."""
    workers = run("failing_restores", [1, 1], tmp_path, str(tmp_path))
    for index, (outcomes, steps) in enumerate(workers):
        assert len(outcomes) == 10
        assert "worker 0 saves ckpt-2, and worker 1 saves ckpt-3 to" in steps[0]
        assert steps[1:] == ["ckpt-1"]
        for case, (found, state, total) in outcomes.items():
            assert state == [[0.0, 0.0], 0, []], case
            assert total == [2.0, 2.0], case
            assert found != "no error", case
            assert ("worker 1: " in found) == (index == 0), (case, found)


def training() -> Any:
    specification = importlib.util.spec_from_file_location("training", PROGRAMS / "training.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


LAYOUTS = {"1x1": ["CPU:0"], "1x4": [f"CPU:{index}" for index in range(4)]}


def strategy_of(layout: str, order: str) -> mr.MirroredStrategy:
    return mr.MirroredStrategy(LAYOUTS[layout], num_replicas=4, deterministic=order == "deterministic")


@pytest.mark.parametrize("order", ["deterministic", pytest.param("any", marks=pytest.mark.slow)])
@pytest.mark.long
def test_training_goes_on_with_the_same_results_on_another_number_of_processes(tmp_path, order):
    midway = {layout: training().Midway(strategy_of(layout, order)) for layout in LAYOUTS}
    for layout, left in midway.items():
        left.leave(tmp_path / layout)
    workers = run("across", [2, 2], tmp_path, order, str(tmp_path), *LAYOUTS)
    origins = ("2x2", *LAYOUTS)
    ends = [worker[origin] for worker in workers for origin in origins]
    ends += [midway[layout].go_on(tmp_path / origin) for layout in LAYOUTS for origin in origins]
    assert {end["seen"] for end in ends} == {37.0}
    check_equal(ends, same_bits=order == "deterministic")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("order", ["deterministic", "any"])
def test_eager_steps_and_several_steps_per_call_are_those_of_one_process(tmp_path, order):
    workers = run("across", [2, 2], tmp_path, order, str(tmp_path), seconds=100)
    strategy = strategy_of("1x4", order)
    alone = training().outcomes(strategy, "eager") | {"several": training().several_per_call(strategy)}
    for way, outcome in alone.items():
        check_equal([worker[way] for worker in workers], same_bits=True)
        check_equal([workers[0][way], outcome], same_bits=order == "deterministic")


def check_equal(outcomes: list[dict[str, Any]], *, same_bits: bool) -> None:
    for outcome in outcomes:
        assert outcome["losses"] == pytest.approx(outcomes[0]["losses"], rel=2e-5)
        assert outcome["seen"] == outcomes[0]["seen"]
        assert not same_bits or outcome == outcomes[0]
