"""Parts that cannot change in place: the program is told when it goes on with, or saves, the old one."""

from __future__ import annotations

import dataclasses
import logging
import types
from collections import namedtuple
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.checkpoint.places import Item, Root
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


def read_only(value: float) -> Any:
    array = np.full(2, value)
    array.setflags(write=False)
    return array


FIXED = {
    "array": lambda value: jnp.full(2, value),
    "key": lambda value: jax.random.key(int(value)),
    "read-only NumPy array": read_only,
    "mapping proxy": lambda value: types.MappingProxyType({"w": jnp.full(2, value)}),
    "FrozenDict": lambda value: flax.core.freeze({"dense": {"w": jnp.full(2, value)}}),
}
UPDATED = {
    "dict": lambda value: {"w": jnp.full(2, value), "b": {"c": jnp.full(1, value)}},
    "list": lambda value: [jnp.full(2, value), jnp.full(1, value)],
    "array": FIXED["array"],
    "key": FIXED["key"],
}


@pytest.mark.parametrize("kind", FIXED)
def test_a_restore_names_the_fixed_part_that_it_has_replaced(kind: str, tmp_path: Path, caplog: Any) -> None:
    path = Checkpoint(state=FIXED[kind](1.0), step=1).write(tmp_path / "c")
    state = FIXED[kind](5.0)
    checkpoint = Checkpoint(state=state, step=0)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.restore(path).assert_consumed()
    assert caplog.text.count("state = checkpoint.state") == 1
    assert checkpoint.state is not state
    assert type(checkpoint.state) is type(state)
    leaf = jax.tree.leaves(dict(checkpoint.state) if kind == "mapping proxy" else checkpoint.state)[0]
    assert (leaf == jax.tree.leaves(FIXED["key" if kind == "key" else "array"](1.0))[0]).all()


def test_a_mapping_that_refuses_a_value_for_another_reason_keeps_its_error() -> None:
    class Strict(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        Item(Root({"a": Strict(b=1)}, "a"), "b").put(2)


@pytest.mark.parametrize("kind", UPDATED)
def test_a_third_save_of_the_same_arrays_is_named(kind: str, tmp_path: Path, caplog: Any) -> None:
    """Every checkpoint had the initial values of parameters that the steps returned anew."""
    checkpoint = Checkpoint(params=UPDATED[kind](0.0))
    manager = CheckpointManager(checkpoint, tmp_path)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        manager.save(1)
        manager.save(1)
        assert not caplog.records
        for step in range(2, 5):
            manager.save(step)
        manager.wait()
    assert caplog.text.count("CheckpointManager.save: checkpoint.params = params") == 1


@pytest.mark.parametrize("kind", UPDATED)
def test_nothing_is_logged_about_arrays_that_are_assigned(kind: str, tmp_path: Path, caplog: Any) -> None:
    checkpoint = Checkpoint(params=UPDATED[kind](0.0), constants={"mean": jnp.ones(2)})
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        for step in range(1, 5):
            checkpoint.params = UPDATED[kind](float(step))
            checkpoint.save(tmp_path / "c")
            checkpoint.save(tmp_path / "c")
    assert not caplog.records


def test_nothing_is_logged_about_constants_beside_variables(tmp_path: Path, caplog: Any) -> None:
    checkpoint = Checkpoint(v=mr.Variable(1.0), constants={"mean": jnp.ones(2)}, key=jax.random.key(0))
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        for _ in range(4):
            checkpoint.save(tmp_path / "c")
    assert not caplog.records


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
