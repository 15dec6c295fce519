"""State in objects that have neither attributes nor items of their own: `functools.partial`, and sets."""

from __future__ import annotations

import functools
import logging
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from checkpoint.programs import Model
from mirrored.checkpoint import Checkpoint, CheckpointReader


def apply(*values: Any, **named: Any) -> None:
    """Is wrapped by the partials."""


def holder(value: float) -> Any:
    inner = {"deep": (mr.Variable(value + 2.0),), "rate": 0.1}
    call = functools.partial(apply, mr.Variable(value), np.ones(2), scale=mr.Variable(value + 1.0), inner=inner)
    return types.SimpleNamespace(call=call, calls=[functools.partial(call, np.ones(3), 7)])


def values(here: Any) -> list[float]:
    variables = (here.call.args[0], here.call.keywords["scale"], here.call.keywords["inner"]["deep"][0])
    return [float(one.numpy()) for one in variables]


def test_variables_in_partials_are_saved_and_constants_are_not(tmp_path: Path) -> None:
    path = Checkpoint(model=holder(1.0)).write(tmp_path / "c")
    call = "model/call"
    assert set(CheckpointReader(path).names) == {
        f"{call}/args/0",
        f"{call}/keywords/scale",
        f"{call}/keywords/inner/deep/0",
    }
    other = holder(7.0)
    Checkpoint(model=other).restore(path).assert_consumed()
    assert values(other) == [1.0, 2.0, 3.0]


def test_state_in_a_partial_and_elsewhere_has_its_name_there(tmp_path: Path) -> None:
    model = Model()
    here = types.SimpleNamespace(loss=functools.partial(apply, model), deep=[[[[model]]]])
    here.itself = functools.partial(apply, [here])
    path = Checkpoint(here=here).write(tmp_path / "c")
    assert set(CheckpointReader(path).names) == {"here/deep/0/0/0/0/kernel", "here/deep/0/0/0/0/layers/0"}


def test_values_in_a_partial_of_an_immutable_object_are_restored(tmp_path: Path) -> None:
    def make(value: float) -> Any:
        return types.SimpleNamespace(call=functools.partial(apply, (1, types.SimpleNamespace(w=np.full(2, value)))))

    path = Checkpoint(model=make(1.0)).write(tmp_path / "c")
    other = make(5.0)
    Checkpoint(model=other).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.call.args[0][1].w, [1.0, 1.0])


@pytest.mark.parametrize("kind", [set, frozenset])
@pytest.mark.parametrize("is_known", [True, False])
def test_state_that_only_a_set_holds_is_reported_once(kind: Any, is_known: bool, tmp_path: Path, caplog: Any) -> None:
    model = Model()
    here = types.SimpleNamespace(layers=kind([model, 3, "text"]), w=mr.Variable(1.0))
    checkpoint = Checkpoint(here=here, models=[model] if is_known else [mr.Variable(2.0)])
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.save(tmp_path / "c")
        checkpoint.save(tmp_path / "c")
    assert caplog.text.count("leaves out the state in here/layers") == (not is_known)
