"""Texts and other values that a checkpoint does not save: a restore warns if they differ."""

from __future__ import annotations

import array
import copy
import datetime
import enum
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.checkpoint.unsaved_values import LIMIT, description_of


class _Phase(enum.Enum):
    WARMUP = "warmup"
    TRAIN = "train"


_DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "text": ({"phase": "warmup", "n": 1}, {"phase": "train", "n": 2}, "part/phase"),
    "enum": ({"phase": _Phase.WARMUP, "n": 1}, {"phase": _Phase.TRAIN, "n": 2}, "part/phase"),
    "none": ({"phase": None, "n": 1}, {"phase": "train", "n": 2}, "part/phase"),
    "set": ({"seen": {1}, "n": 1}, {"seen": {1, 2}, "n": 2}, "part/seen"),
    "set of texts": ({"seen": frozenset("a"), "n": 1}, {"seen": frozenset("ab"), "n": 2}, "part/seen"),
    "date": ({"day": datetime.date(2026, 1, 1), "n": 1}, {"day": datetime.date(2026, 1, 2), "n": 2}, "part/day"),
    "bytes": ([b"a", 1], [b"b", 2], "part/0"),
    "bytearray": ([bytearray(b"a"), 1], [bytearray(b"b"), 2], "part/0"),
    "bits": ({"r": np.random.PCG64(1), "n": 1}, {"r": np.random.PCG64(2), "n": 2}, "part/r"),
    "seeds": ({"r": np.random.SeedSequence(1), "n": 1}, {"r": np.random.SeedSequence(2), "n": 2}, "part/r"),
    "new item": ({"n": 1}, {"n": 2, "phase": "train"}, "part/phase"),
    "longer list": (["a"], ["a", "b"], "part/1"),
    "nested": ({"a": {"b": ("x", 1)}}, {"a": {"b": ("y", 2)}}, "part/a/b/0"),
    "attribute": (SimpleNamespace(phase="warmup", n=1), SimpleNamespace(phase="train", n=2), "part/phase"),
    "long text": ({"log": "a" * 200, "n": 1}, {"log": "a" * 199 + "b", "n": 1}, "part/log"),
}


def _restored(saved: Any, start: Any, tmp_path: Path, *, in_memory: bool) -> Any:  # Any: parts of all kinds
    v = mr.Variable(1.0)
    before = Checkpoint(part=saved, v=v)
    here = copy.deepcopy(start)
    after = Checkpoint(part=here, v=v)
    if in_memory:
        _ = before.save_counter
        restore_snapshot(after, begin_snapshot(before).finish())
    else:
        after.restore(before.save(tmp_path / "c")).assert_consumed()
    return here


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "snapshot"])
@pytest.mark.first(5)
@pytest.mark.parametrize("case", _DIFFERENT)
def test_a_restore_warns_of_values_that_are_not_saved_and_differ(
    case: str, in_memory: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, saved, name = _DIFFERENT[case]
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        _restored(saved, start, tmp_path, in_memory=in_memory)
    found = [one.getMessage() for one in caplog.records]
    assert len(found) == 1
    assert f"did not restore {name} (" in found[0]
    assert "set_state" in found[0]


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "snapshot"])
@pytest.mark.first(5)
@pytest.mark.parametrize("case", _DIFFERENT)
def test_a_restore_is_silent_if_the_values_are_equal(
    case: str, in_memory: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, saved, _ = _DIFFERENT[case]
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        _restored(saved, saved, tmp_path, in_memory=in_memory)
    assert not caplog.records


def test_names_of_a_model_are_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Model:
        def __init__(self, name: str) -> None:
            self.name, self.w = name, mr.Variable([1.0])

    path = Checkpoint(model=Model("first"), n=1).save(tmp_path / "c")
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        Checkpoint(model=Model("second"), n=1).restore(path).assert_consumed()
    assert not caplog.records


def test_a_part_that_is_assigned_later_is_compared_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Checkpoint(v=mr.Variable(1.0), early={"phase": "a", "n": 1}, late={"phase": "b", "n": 2}).save(
        tmp_path / "c"
    )
    checkpoint = Checkpoint(v=mr.Variable(0.0), early={"phase": "a", "n": 0})
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        status = checkpoint.restore(path)
        checkpoint.early["phase"] = "changed by the program"
        checkpoint.late = {"phase": "c", "n": 0}
        status.assert_consumed()
    assert checkpoint.late["n"] == 2
    assert [one.getMessage().split(" (")[0].rpartition(" ")[2] for one in caplog.records] == ["late/phase"]


def test_large_values_are_described_by_a_digest() -> None:
    for value in ("x" * 10_000_000, b"x" * 10_000_000, bytearray(10_000_000), array.array("d", range(1_000_000))):
        text = description_of(value)
        assert text is not None
        assert len(text) < 1000
        assert text == description_of(copy.deepcopy(value))
        assert text != description_of(value[:-1])


def test_a_set_has_one_description_in_any_order() -> None:
    assert description_of({"a", "b", "c"}) == description_of({"c", "b", "a"}) == "{'a', 'b', 'c'}"
    assert description_of({object()}) is None
    assert description_of(set(range(LIMIT + 1))) is None
    assert description_of(3) is None
