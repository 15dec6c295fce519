"""State that earlier versions did not save: a checkpoint of this version that lacks it is reported."""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from checkpoint.earlier_versions import as_by_earlier_version
from mirrored.checkpoint import Checkpoint, CheckpointManager, objects
from mirrored.checkpoint.manifest import read_manifest
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.checkpoint.objects import LEVEL
from mirrored.elastic.snapshots import packed, unpacked
from mirrored.errors import CheckpointMismatchError
from mirrored.optimizers import SGD


def namespace(**attributes: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**attributes)


class Log(dict[str, Any]):
    """A dict of the program, which can have attributes."""


def log(items: dict[str, Any], **attributes: Any) -> Log:
    made = Log(items)
    vars(made).update(attributes)
    return made


class Shuffler(random.Random):
    """A generator of the program."""


class Scaled(SGD):
    """An optimizer of the program, which can have attributes."""


def scaled(**attributes: Any) -> Scaled:
    made = Scaled(0.1)
    vars(made).update(attributes)
    return made


# What the program that saved has, what the program that restores has, and the names that the checkpoint lacks.
Case = tuple[Callable[[], Any], Callable[[], Any], set[str]]
LACKS: dict[str, Case] = {
    "attribute": (lambda: namespace(n=1), lambda: namespace(n=2, r=random.Random(0)), {"part/r"}),
    "dict": (lambda: {"n": 1}, lambda: {"n": 2, "r": {"s": random.Random(0)}}, {"part/r/s"}),
    "list": (lambda: [1], lambda: [2, random.Random(0)], {"part/1"}),
    "own class": (lambda: namespace(n=1), lambda: namespace(n=2, r=Shuffler(0)), {"part/r/%state"}),
    "nested number": (lambda: namespace(n=1), lambda: namespace(n=2, a=namespace(m=3)), {"part/a/m"}),
    "attribute of a dict": (lambda: log({"n": 1}), lambda: log({"n": 2}, v=mr.Variable(0.0)), {"part/v"}),
    "number of a dict": (lambda: log({"n": 1}), lambda: log({"n": 2}, m=3), {"part/m"}),
    "checkpoint": (lambda: {"n": mr.Variable(1)}, lambda: Checkpoint(n=mr.Variable(2), m=3), {"part/m"}),
    "optimizer": (lambda: scaled(), lambda: scaled(v=mr.Variable(0.0)), {"part/v"}),
}


@pytest.mark.parametrize("place", LACKS)
def test_missing_state_is_reported(place: str, tmp_path: Path) -> None:
    """It was taken for a checkpoint of an earlier version, which does not save such state."""
    source, target, missing = LACKS[place]
    manager = CheckpointManager(Checkpoint(w=mr.Variable(1.0), part=source()), tmp_path)
    path = manager.save(1)
    manager.wait()
    w, part = mr.Variable(0.0), target()
    status = Checkpoint(w=w, part=part).restore(path)
    assert set(status.missing) == missing
    with pytest.raises(CheckpointMismatchError, match="missing in the checkpoint"):
        status.assert_existing_objects_matched()
    with pytest.raises(CheckpointMismatchError, match="missing in the checkpoint"):
        CheckpointManager(Checkpoint(w=w, part=part), tmp_path).restore_latest()
    as_by_earlier_version(path)
    assert CheckpointManager(Checkpoint(w=w, part=target()), tmp_path).restore_latest() == 1


@pytest.mark.parametrize("make", [random.Random, Shuffler, np.random.default_rng])
@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_generator_of_which_the_checkpoint_has_no_state_is_reported(
    make: Callable[[int], Any], is_renamed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"old": make(1)} if is_renamed else {}
    path = Checkpoint(w=mr.Variable(1.0), **parts).write(tmp_path / "c")
    status = Checkpoint(w=mr.Variable(0.0), new=make(1)).restore(path)
    assert [name.partition("/")[0] for name in status.missing] == ["new"]
    assert [name.partition("/")[0] for name in status.unexpected] == list(parts)
    with pytest.raises(CheckpointMismatchError):
        status.assert_existing_objects_matched()
    status = Checkpoint(w=mr.Variable(0.0), new=make(1)).restore(path)
    del status
    assert "missing in the checkpoint" in caplog.text
    assert Checkpoint(new=make(1)).restore(None).missing


def test_nested_numbers_and_other_state_of_an_earlier_version_are_both_missing(tmp_path: Path) -> None:
    """A number in an attribute of a dict is of both kinds, of which only the one was recognized."""
    path = as_by_earlier_version(Checkpoint(part=namespace(a=log({"v": mr.Variable(1.0)}))).write(tmp_path / "c"))
    part = namespace(a=log({"v": mr.Variable(0.0)}), b=log({}, w=mr.Variable(0.0)), c=log({}, d=namespace(m=1)))
    Checkpoint(part=part).restore(path).assert_existing_objects_matched()


def test_what_is_carried_over_is_of_its_version(tmp_path: Path) -> None:
    """A part for which a checkpoint carries values over has what the earlier version saved; others have all state."""
    former = namespace(log=log({"v": mr.Variable(3.0)}), edges={(1, 2): mr.Variable(4.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_key_text", lambda key: key if isinstance(key, str) else None)
        path = as_by_earlier_version(Checkpoint(n=1, part=former).write(tmp_path / "former"))
    for name in ("between", "again"):
        between = Checkpoint(n=0, part=namespace())
        between.restore(path).expect_partial()
        path = between.write(tmp_path / name)
        manifest = read_manifest(path)
        assert (manifest.level, manifest.carried_level) == (LEVEL, 0)
        assert set(manifest.carried) == {"part/log/v", "part/edges/#0"}
        v, edge = mr.Variable(0.0), mr.Variable(0.0)
        part = namespace(log=log({"v": v}, w=mr.Variable(1.0), r=random.Random(0)), edges={(1, 2): edge})
        Checkpoint(n=0, part=part).restore(path).assert_consumed()
        assert (float(v.numpy()), float(edge.numpy())) == (3.0, 4.0)
        status = Checkpoint(n=0, part=part, r=random.Random(0)).restore(path).expect_partial()
        assert status.missing == ("r",)


def test_what_is_carried_over_from_this_version_has_all_state(tmp_path: Path) -> None:
    path = Checkpoint(n=1, part=namespace(log=log({"v": mr.Variable(3.0)}))).write(tmp_path / "c")
    between = Checkpoint(n=1, part=namespace())
    between.restore(path).expect_partial()
    path = between.write(tmp_path / "between")
    manifest = read_manifest(path)
    assert (manifest.carried, manifest.level, manifest.carried_level) == (["part/log/v"], LEVEL, LEVEL)
    part = namespace(log=log({"v": mr.Variable(0.0)}, w=mr.Variable(0.0)))
    assert Checkpoint(n=1, part=part).restore(path).expect_partial().missing == ("part/log/w",)


def test_former_names_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """The position of a key, by which earlier versions named its value, is also a key."""
    path = Checkpoint(part={"#1": mr.Variable(1.0)}).write(tmp_path / "c")
    part = {"#1": mr.Variable(0.0), (1, 2): mr.Variable(0.0)}
    status = Checkpoint(part=part).restore(path).expect_partial()
    assert status.missing == ("part/(1, 2)",)
    assert [float(one.numpy()) for one in part.values()] == [1.0, 0.0]


def test_numbers_beside_arrays_are_no_configuration(tmp_path: Path) -> None:
    """Numbers are configuration only beside variables."""
    path = Checkpoint(w=mr.Variable(1.0), part=namespace(mean=np.ones(2))).write(tmp_path / "c")
    status = Checkpoint(w=mr.Variable(0.0), part=namespace(count=3)).restore(path).expect_partial()
    assert (status.missing, status.unexpected) == (("part/count",), ("part/mean",))


@pytest.mark.parametrize("is_former", [True, False])
def test_snapshots_tell_which_state_they_have(is_former: bool, tmp_path: Path) -> None:
    """A worker that joins restores as the workers that have made the snapshot do."""
    path = Checkpoint(w=mr.Variable(1.0), part=namespace(v=mr.Variable(3.0))).write(tmp_path / "c")
    source = Checkpoint(w=mr.Variable(1.0), part=namespace())
    source.restore(as_by_earlier_version(path) if is_former else path).expect_partial()
    snapshot = begin_snapshot(source).finish()
    assert (snapshot.carried, snapshot.level) == (["part/v"], LEVEL)
    assert snapshot.carried_level == (0 if is_former else LEVEL)
    head, parts = packed(snapshot)
    sent = unpacked(head, np.concatenate(parts))
    others = [field.name for field in dataclasses.fields(sent) if field.name != "leaves"]
    assert [getattr(sent, name) for name in others] == [getattr(snapshot, name) for name in others]
    v = mr.Variable(0.0)
    restore_snapshot(Checkpoint(w=mr.Variable(0.0), part=namespace(v=v, r=random.Random(0))), sent)
    assert float(v.numpy()) == 3.0
