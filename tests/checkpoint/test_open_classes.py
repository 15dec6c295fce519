"""Objects of classes that seem to belong to the standard library."""

from __future__ import annotations

import argparse
import builtins
import dataclasses
import decimal
import functools
import importlib.util
import io
import logging
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from checkpoint.earlier_versions import save_as_by_earlier_version
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint.open_classes import is_open


def by_new_class() -> type:
    return types.new_class("Net")


def by_exec() -> type:
    names: dict[str, Any] = {"__builtins__": builtins}
    exec("class Net: pass", names)
    assert names["Net"].__module__ == "builtins"
    return names["Net"]


def by_make_dataclass() -> type:
    kind = dataclasses.make_dataclass("Net", [])
    kind.__module__ = "types"  # as in Python 3.11
    return kind


KINDS = [by_new_class, by_exec, by_make_dataclass]


def net(kind: type, value: float, *, is_whole: bool = True) -> Any:
    made = kind()
    if is_whole:
        made.w, made.mean = mr.Variable(value), np.full(2, value)
    return made


@pytest.mark.parametrize("make", KINDS)
def test_objects_of_classes_that_code_has_created_are_saved(make: Callable[[], type], tmp_path: Path) -> None:
    """They were left out, silently."""
    kind = make()
    source, target = net(kind, 1.0), net(kind, 5.0)
    path = Checkpoint(v=mr.Variable(1.0), net=source).write(tmp_path / "c")
    Checkpoint(v=mr.Variable(0.0), net=target).restore(path).assert_consumed()
    assert float(target.w.numpy()) == 1.0
    np.testing.assert_array_equal(target.mean, [1.0, 1.0])


def test_objects_of_a_class_in_a_file_with_the_name_of_a_library_module_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphlib.py").write_text("class TopologicalSorter: pass\n")
    spec = importlib.util.spec_from_file_location("graphlib", tmp_path / "graphlib.py")
    assert spec is not None
    assert spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "graphlib", own)
    spec.loader.exec_module(own)
    source, target = net(own.TopologicalSorter, 1.0), net(own.TopologicalSorter, 5.0)
    Checkpoint(net=target).restore(Checkpoint(net=source).write(tmp_path / "c")).assert_consumed()
    assert float(target.w.numpy()) == 1.0


@pytest.mark.parametrize("make", KINDS)
def test_a_checkpoint_of_an_earlier_version_has_no_state_of_such_objects(
    make: Callable[[], type], tmp_path: Path
) -> None:
    kind, v = make(), mr.Variable(0.0)
    save_as_by_earlier_version(Checkpoint(v=mr.Variable(1.0), net=net(kind, 1.0, is_whole=False)), tmp_path)
    assert CheckpointManager(Checkpoint(v=v, net=net(kind, 5.0)), tmp_path).restore_latest() == 1
    assert float(v.numpy()) == 1.0


@pytest.mark.parametrize("make", KINDS)
def test_such_an_object_keeps_a_restore_that_waits(make: Callable[[], type], tmp_path: Path) -> None:
    kind = make()
    path = Checkpoint(net=net(kind, 3.0)).write(tmp_path / "c")
    target = net(kind, 5.0, is_whole=False)
    Checkpoint(net=target).restore(path)
    target.w = mr.Variable(0.0)
    assert float(target.w.numpy()) == 3.0


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        threading.Thread(),
        threading.local(),
        logging.getLogger("test"),
        io.StringIO(),
        argparse.ArgumentParser(),
        decimal.Decimal(1),
        Path(),
        types,
        by_exec,
        lambda: None,
        functools.lru_cache(by_exec),
        (one for one in "ab"),
        iter([]),
        {}.keys(),
        np.random.PCG64(0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_of_the_standard_library_have_no_state(value: object) -> None:
    assert not is_open(value)
