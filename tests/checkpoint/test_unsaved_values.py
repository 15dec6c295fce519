"""Texts and other values that a checkpoint does not save: a restore warns if they differ."""

from __future__ import annotations

import array
import copy
import dataclasses
import datetime
import enum
import functools
import logging
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, sharing
from mirrored.checkpoint.manifest import Manifest
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


class _Label(str):
    """A text whose own methods fail, or print an address."""

    def __repr__(self) -> str:
        return f"<label at {id(self)}>"

    def __len__(self) -> int:
        raise ValueError

    def __getitem__(self, key: Any) -> str:
        raise ValueError


class _Failing(set[int]):
    def __len__(self) -> int:
        raise ValueError


class _Zone(datetime.tzinfo):
    def utcoffset(self, dt: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=1)

    def dst(self, dt: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(0)

    def tzname(self, dt: datetime.datetime | None) -> str:
        return "zone"


class _Folder(type(Path())):  # type: ignore[misc]
    def __repr__(self) -> str:
        return f"<folder at {id(self)}>"


class _Text(enum.StrEnum):
    A = "a"

    def __str__(self) -> str:
        raise ValueError


_MAKES: dict[str, Any] = {
    "str": lambda: _Label("a" * 300),
    "enum": lambda: _Text.A,
    "path": lambda: _Folder("/a"),
    "time zone": lambda: datetime.datetime(2026, 1, 1, tzinfo=_Zone()),
    "MT19937": lambda: np.random.MT19937(1),
}


@pytest.mark.parametrize("case", _MAKES)
def test_equal_values_of_own_classes_have_one_description(case: str) -> None:
    first, second = (_MAKES[case]() for _ in range(2))
    text = description_of(first)
    assert text is not None
    with np.printoptions(threshold=5):
        assert description_of(second) == text


def test_a_value_whose_methods_fail_has_no_description(tmp_path: Path) -> None:
    assert description_of(_Failing()) is None
    assert description_of(_Text.A) == description_of("a")
    Checkpoint(part={"items": _Failing(), "n": 1}).save(tmp_path / "c")


class _Cached:
    def __init__(self) -> None:
        self.n = 1

    @functools.cached_property
    def label(self) -> str:
        return "a"


def test_a_cached_property_need_not_be_read_before_the_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = _Cached()
    assert part.label == "a"
    path = Checkpoint(part=part).save(tmp_path / "c")
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        Checkpoint(part=_Cached()).restore(path).assert_consumed()
    assert not caplog.records


def test_the_texts_of_an_object_that_has_variables_since_the_save_are_not_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Checkpoint(v=mr.Variable(1.0), part=SimpleNamespace(name="a", w=None)).save(tmp_path / "c")
    checkpoint = Checkpoint(v=mr.Variable(0.0), part=SimpleNamespace(name="a", w=mr.Variable(1.0)))
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.restore(path).expect_partial()
    assert not caplog.records


def test_texts_beyond_the_limit_are_not_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Checkpoint(words=[1], run=[["a", 1]]).save(tmp_path / "c")
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        Checkpoint(words=[1, *map(str, range(LIMIT))], run=[["a", 1]]).restore(path).assert_consumed()
    assert not caplog.records


def test_texts_that_differ_between_workers_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = dataclasses.replace(Manifest({}, {}, {}), described={"part/host": "'first'", "part/phase": "'train'"})
    other = {"part/host": "'second'", "part/phase": "'train'"}

    def gather(called: str, question: str, value: Any) -> list[Any]:
        return [value, other if isinstance(value, dict) else [*value[:-1], "other"]]

    monkeypatch.setattr(sharing, "several_workers", lambda: True)
    monkeypatch.setattr(sharing, "host_allgather", gather)
    found = sharing.with_all_positions(manifest, {}, set(), "Checkpoint.save")
    assert found.described == {"part/phase": "'train'"}


@pytest.mark.parametrize("make", [lambda: None, lambda: np.random.default_rng(0), lambda: random.Random(0)])
def test_numbers_beside_a_generator_are_configuration_before_the_variables_are_created(
    make: Any, tmp_path: Path
) -> None:
    def trainer(w: Any) -> SimpleNamespace:
        model = SimpleNamespace(w=w)
        return SimpleNamespace(model=model, log=SimpleNamespace(best=1.0), random=make())

    path = Checkpoint(v=mr.Variable(1.0), trainer=trainer(mr.Variable(1.0))).save(tmp_path / "c")
    status = Checkpoint(v=mr.Variable(0.0), trainer=trainer(None)).restore(path)
    status.assert_existing_objects_matched()


def test_names_that_a_library_numbers_are_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Worker(threading.Thread):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

    path = Checkpoint(worker=Worker(1)).save(tmp_path / "c")
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        Checkpoint(worker=Worker(0)).restore(path)
    assert not [one for one in caplog.records if "did not restore" in one.getMessage()]
