"""Parts that cannot change in place: the program is told when it goes on with, or saves, the old one."""

from __future__ import annotations

import dataclasses
import logging
from collections import namedtuple
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.elastic.session import Session
from mirrored.elastic.snapshots import Snapshots


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    params: Any
    step: int = 0


Pair = namedtuple("Pair", ["first", "second"])

IMMUTABLE = {
    "frozen": lambda value: State(jnp.full(2, value)),
    "tuple": lambda value: (jnp.full(2, value), jnp.zeros(1)),
    "named tuple": lambda value: Pair(jnp.full(2, value), 1),
}


@pytest.mark.parametrize("kind", IMMUTABLE)
def test_a_restore_names_the_part_that_it_has_replaced(kind: str, tmp_path: Path, caplog: Any) -> None:
    path = Checkpoint(state=IMMUTABLE[kind](1.0)).write(tmp_path / "c")
    state = IMMUTABLE[kind](5.0)
    checkpoint = Checkpoint(state=state)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.restore(path).assert_consumed()
    assert caplog.text.count("state = checkpoint.state") == 1
    assert checkpoint.state is not state
    assert jax.tree.leaves(checkpoint.state)[0].tolist() == [1, 1]


def test_a_restore_from_memory_names_the_part_that_it_has_replaced(caplog: Any) -> None:
    manifest = begin_snapshot(Checkpoint(state=IMMUTABLE["frozen"](1.0))).finish()
    state = IMMUTABLE["frozen"](5.0)
    checkpoint = Checkpoint(state=state)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        restore_snapshot(checkpoint, manifest)
    assert caplog.text.count("resume: the State that was passed as 'state' cannot be changed") == 1
    assert checkpoint.state is not state
    assert checkpoint.state.params.tolist() == [1, 1]


def test_a_manager_and_a_commit_name_the_part_that_was_not_assigned(tmp_path: Path, caplog: Any) -> None:
    checkpoint = Checkpoint(state=IMMUTABLE["frozen"](1.0), step=0)
    manager = CheckpointManager(checkpoint, tmp_path)
    session = Session(None, Snapshots(lambda step: None), None, 1)
    session.resume(checkpoint)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.state = IMMUTABLE["frozen"](2.0)
        session._snapshot()
        manager.save(1)
        assert not caplog.records, "one call of each has saved the state"
        checkpoint.state = IMMUTABLE["frozen"](3.0)
        manager.save(2)
        assert not caplog.records
        manager.save(3)
        manager.wait()
        assert caplog.text.count("before you call CheckpointManager.save: checkpoint.state = state") == 1
        checkpoint._told.clear()
        session._snapshot()
        assert "before you call Session.commit" not in caplog.text
        session._snapshot()
        assert caplog.text.count("before you call Session.commit: checkpoint.state = state") == 1


@pytest.mark.parametrize("kind", IMMUTABLE)
def test_a_save_names_the_part_that_was_not_assigned(kind: str, tmp_path: Path, caplog: Any) -> None:
    checkpoint = Checkpoint(state=IMMUTABLE[kind](1.0), epoch=0)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.save(tmp_path / "c")
        checkpoint.state = IMMUTABLE[kind](2.0)
        checkpoint.epoch = 1
        checkpoint.save(tmp_path / "c")
        assert not caplog.records
        checkpoint.epoch = 2
        checkpoint.save(tmp_path / "c")
        checkpoint.save(tmp_path / "c")
    assert caplog.text.count("checkpoint.state = state") == 1


def test_nothing_is_logged_about_state_that_changes_in_place(tmp_path: Path, caplog: Any) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        state = mr.mirror(State({"w": jnp.ones(2)}, jnp.int32(0)))
    checkpoint = Checkpoint(
        state=state, pair=(mr.Variable(1.0),), params={"w": jnp.ones(2)}, values=[jnp.ones(2)], epoch=1
    )
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        path = checkpoint.save(tmp_path / "c")
        path = checkpoint.save(tmp_path / "c")
        mr.assign(state, State({"w": jnp.zeros(2)}, jnp.int32(7)))
        checkpoint.restore(path).assert_consumed()
    assert not caplog.records
    assert state.params["w"].numpy().tolist() == [1, 1]
    assert int(state.step.numpy()) == 0
