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
from mirrored.checkpoint import Checkpoint


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
