"""Snapshots of a checkpoint in memory: what waits for its objects, what is refused, and what is written to disk."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from checkpoint.programs import Model
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.errors import ArgumentError


def test_a_snapshot_keeps_what_waits_for_its_objects(tmp_path: Path) -> None:
    path = Checkpoint(params={"w": mr.Variable(5.0), "b": mr.Variable(6.0)}, step=7).write(tmp_path / "c")
    first = Checkpoint(params={}, step=0)
    first.restore(path).expect_partial()
    first.params["b"] = mr.Variable(0.0)
    first.params["b"].assign(8.0)
    second = Checkpoint(params={}, step=0)
    restore_snapshot(second, begin_snapshot(first).finish())
    third = Checkpoint(params={}, step=0)
    restore_snapshot(third, begin_snapshot(second).finish())
    third.params.update(w=mr.Variable(0.0), b=mr.Variable(0.0))
    assert (float(third.params["w"].numpy()), float(third.params["b"].numpy()), third.step) == (5.0, 8.0, 7)


def test_a_snapshot_refuses_and_warns_as_a_save_does(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ArgumentError, match=r"Session.commit(.|\n)*seen/days is an array of datetime64"):
        begin_snapshot(Checkpoint(step=0, seen={"days": np.array(["2026-01-01"], "M8[D]")}))
    checkpoint = Checkpoint(step=0, seen={"set": {Model()}})
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        begin_snapshot(checkpoint)
        begin_snapshot(checkpoint)
    assert caplog.text.count("Session.commit leaves out the state in seen/set") == 1


def test_a_part_that_comes_after_a_save_is_restored_from_memory(tmp_path: Path) -> None:
    manifest = begin_snapshot(Checkpoint(step=3, extra=mr.Variable(5.0))).finish()
    checkpoint = Checkpoint(step=0)
    restore_snapshot(checkpoint, manifest)
    checkpoint.write(tmp_path / "c")
    checkpoint.extra = mr.Variable(0.0)
    assert float(checkpoint.extra.numpy()) == 5.0


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("aggregation", "replicas", "components"),
    [
        ("SUM", 2, [1.0, 4.0]),
        ("SUM", 1, [5.0]),
        ("MEAN", 2, [1.0, 4.0]),
        ("MEAN", 3, [2.5, 2.5, 2.5]),
        ("ONLY_FIRST_REPLICA", 3, [1.0, 1.0, 1.0]),
    ],
)
def test_components_of_a_snapshot_are_aggregated(
    aggregation: str, replicas: int, components: list[float], tmp_path: Path
) -> None:
    def metric(number: int) -> Any:
        with mr.MirroredStrategy(["CPU:0"], num_replicas=number).scope():
            return mr.Variable(0.0, synchronization="ON_READ", aggregation=aggregation)

    total = metric(2)
    for one, value in zip(total.values, [1.0, 4.0], strict=True):
        one.assign(value)
    waiting = Checkpoint(metrics={}, step=0)
    restore_snapshot(waiting, begin_snapshot(Checkpoint(metrics={"total": total}, step=0)).finish())
    path = waiting.write(tmp_path / "c")
    other = metric(replicas)
    Checkpoint(metrics={"total": other}, step=0).restore(path).assert_consumed()
    assert [float(one.numpy()) for one in other.values] == components
