"""State of optimizers besides variables and slots: learning rates that have no variable yet, schedules, attributes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from checkpoint.earlier_versions import save_as_by_earlier_version
from checkpoint.programs import Training
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.optimizers import SGD


class Warm:
    """A schedule with a variable."""

    def __init__(self) -> None:
        self.peak = mr.Variable(0.5, trainable=False)
        self.table = np.ones(2)

    def __call__(self, step: Any) -> Any:
        return self.peak.read_value()


class Scaled(SGD):
    """An optimizer with a variable, and with another schedule than a function."""

    def __init__(self, learning_rate: Any = 0.1) -> None:
        super().__init__(learning_rate)
        self.scale = mr.Variable(1.0, trainable=False)
        self._inner = {"deep": [mr.Variable(1.0)]}
        self.table = jnp.ones(2)
        self.count = 7


def rate(optimizer: Any) -> float:
    return round(float(optimizer.learning_rate), 5)


@pytest.mark.parametrize("is_built", [True, False])
def test_a_learning_rate_that_is_assigned_after_a_restore_holds(is_built: bool, tmp_path: Path) -> None:
    w, saved = mr.Variable(3.0), SGD(0.25)
    saved.build([w])
    path = Checkpoint(params={"w": w}, optimizer=saved).write(tmp_path / "c")
    optimizer = SGD(0.1)
    checkpoint = Checkpoint(params={"w": mr.Variable(0.0)} if is_built else {}, optimizer=optimizer)
    checkpoint.restore(path).expect_partial()
    optimizer.learning_rate = 0.5
    if not is_built:
        checkpoint.params["w"] = mr.Variable(0.0)
    optimizer.apply_gradients([(1.0, checkpoint.params["w"])])
    assert (float(checkpoint.params["w"].numpy()), rate(optimizer)) == (2.5, 0.5)


@pytest.mark.long
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("is_built", [True, False])
def test_a_learning_rate_without_a_variable_is_saved_if_it_was_assigned(
    is_built: bool, in_memory: bool, tmp_path: Path
) -> None:
    optimizer = SGD(0.1)
    checkpoint = Checkpoint(w=mr.Variable(1.0), optimizer=optimizer)
    assert CheckpointReader(checkpoint.write(tmp_path / "before")).names == ("w",)
    optimizer.learning_rate = 0.25
    path = checkpoint.write(tmp_path / "c")
    other, w = SGD(0.1), mr.Variable(0.0)
    if is_built:
        other.build([w])
    restored = Checkpoint(w=w, optimizer=other)
    if in_memory:
        restore_snapshot(restored, begin_snapshot(checkpoint).finish())
    else:
        restored.restore(path).expect_partial()
    assert bool(other.made().scalars) is is_built
    assert rate(other) == 0.25


@pytest.mark.parametrize("learning_rate", [0.1, lambda step: 0.1])
def test_checkpoints_without_a_learning_rate_are_restored_strictly(learning_rate: Any, tmp_path: Path) -> None:
    CheckpointManager(Checkpoint(w=mr.Variable(1.0), optimizer=SGD(learning_rate)), tmp_path).save(1)
    manager = CheckpointManager(Checkpoint(w=mr.Variable(0.0), optimizer=SGD(0.5)), tmp_path)
    assert manager.restore_latest() == 1
    assert manager.restored is not None
    manager.restored.assert_consumed()


def test_a_failed_restore_leaves_the_learning_rate(tmp_path: Path) -> None:
    saved = SGD(0.1)
    saved.learning_rate = 0.25
    path = Checkpoint(optimizer=saved, v=mr.Variable(1.0)).write(tmp_path / "c")
    optimizer = SGD(0.5)
    with pytest.raises(mr.errors.CheckpointMismatchError):
        Checkpoint(optimizer=optimizer, v=mr.Variable([1.0])).restore(path)
    assert rate(optimizer) == 0.5


@pytest.mark.first(1)
@pytest.mark.parametrize("is_built", [True, False])
def test_a_learning_rate_without_a_variable_is_no_common_name(is_built: bool, tmp_path: Path) -> None:
    w, saved = mr.Variable(1.0), SGD(0.1)
    saved.learning_rate = 0.25
    if is_built:
        saved.build([w])
    path = Checkpoint(model={"w": w}, optimizer=saved).write(tmp_path / "c")
    optimizer = SGD(0.5)
    with pytest.raises(mr.errors.CheckpointMismatchError, match=r"(?s)no name in common.*\n0 of 1 names"):
        Checkpoint(net={"w": mr.Variable(0.0)}, optimizer=optimizer).restore(path)
    assert rate(optimizer) == 0.5
    # There is nothing else to compare on one side.
    Checkpoint(optimizer=optimizer).restore(path).expect_partial()
    assert rate(optimizer) == 0.25


@pytest.mark.parametrize("slots_first", [True, False])
def test_variables_of_a_subclass_and_of_a_schedule_are_saved(slots_first: bool, tmp_path: Path) -> None:
    w, optimizer = mr.Variable(3.0), Scaled(Warm())
    if slots_first:
        optimizer.build([w])
    optimizer.scale.assign(2.0)
    optimizer._inner["deep"][0].assign(3.0)
    optimizer.given_rate().schedule.peak.assign(4.0)
    path = Checkpoint(w=w, optimizer=optimizer).write(tmp_path / "c")
    own = {"optimizer/scale", "optimizer/_inner/deep/0", "optimizer/learning_rate/peak"}
    assert set(CheckpointReader(path).names) == own | {"w"} | ({"optimizer/iterations"} if slots_first else set())
    other_w, other = mr.Variable(0.0), Scaled(Warm())
    Checkpoint(w=other_w, optimizer=other).restore(path).assert_consumed()
    assert float(other.scale.numpy()) == 2.0
    assert float(other._inner["deep"][0].numpy()) == 3.0
    assert float(other.given_rate().schedule.peak.numpy()) == 4.0


@pytest.mark.parametrize("has_rate", [True, False])
def test_a_checkpoint_of_an_earlier_version_has_no_attributes_of_optimizers(has_rate: bool, tmp_path: Path) -> None:
    save_as_by_earlier_version(Checkpoint(w=mr.Variable(1.0), optimizer=SGD(0.1)), tmp_path)
    optimizer: Any = Scaled()
    if has_rate:
        optimizer.other = SGD(0.5)  # not built
    manager = CheckpointManager(Checkpoint(w=mr.Variable(0.0), optimizer=optimizer), tmp_path)
    assert manager.restore_latest() == 1


def test_attributes_of_optimizers_change_no_other_name(tmp_path: Path) -> None:
    optimizer: Any = mr.optimizers.Adam(0.1)
    v = mr.Variable(1.0, name="v")
    optimizer.model = {"v": v}
    optimizer.build([v])
    far = Checkpoint(far={"from": {"the": {"root": [v]}}}, optimizer=optimizer)
    names = CheckpointReader(far.write(tmp_path / "c")).names
    assert "far/from/the/root/0" in names
    assert "optimizer/slots/far/from/the/root/0/mu" in names
    assert not any(name.startswith("optimizer/model") for name in names)


@pytest.mark.first(1)
@pytest.mark.parametrize("is_named", [False, True])
def test_slots_that_only_the_order_of_creation_distinguishes_are_named(
    is_named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the model, a program that creates its variables in another order exchanges their momenta."""
    variables = [mr.Variable([1.0, 2.0], name=f"w{at}" if is_named else None) for at in range(2)]
    optimizer = SGD(0.1, momentum=0.9)
    optimizer.build([*variables, mr.Variable(1.0)])
    path = Checkpoint(optimizer=optimizer).write(tmp_path / "c")
    whole = Checkpoint(optimizer=optimizer, model=variables).write(tmp_path / "whole")
    Checkpoint(optimizer=optimizer, model=variables).restore(whole)
    assert not caplog.messages
    Checkpoint(optimizer=optimizer).restore(path)
    assert len(caplog.messages) == (0 if is_named else 1)
    if not is_named:
        assert "the slots of optimizer in" in caplog.text
        assert all(f"{one.name.removesuffix(':0')}" in caplog.text for one in variables)


@pytest.mark.parametrize("shapes", [[(1,), (2,), (3,)], [(2,), (2,), (2,)]])
def test_slots_of_variables_that_have_the_same_name_are_numbered(
    shapes: list[tuple[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Saving them raised an error, because two slots had the same name."""

    def built(names: list[str]) -> tuple[Any, list[Any]]:
        variables = [
            mr.Variable(np.zeros(shape, np.float32), name=name) for name, shape in zip(names, shapes, strict=True)
        ]
        optimizer = SGD(0.1, momentum=0.9)
        optimizer.build(variables)
        return optimizer, [optimizer.slots(one)["trace"] for one in variables]

    optimizer, slots = built(["w", "w", "w"])
    for number, slot in enumerate(slots):
        slot.assign(slot + float(number))
    path = Checkpoint(optimizer=optimizer).write(tmp_path / "c")
    names = {f"optimizer/slots/:{name}/trace" for name in ("w", "w:1", "w:2")}
    assert names <= set(CheckpointReader(path).names)
    other, restored = built(["w", "w", "w"])
    Checkpoint(optimizer=other).restore(path).assert_consumed()
    assert [float(one.numpy()[0]) for one in restored] == [0.0, 1.0, 2.0]
    assert ("(w, w:1, w:2)" in caplog.text) == (shapes[0] == shapes[1])


_PARTS: dict[str, Callable[[Training], dict[str, Any]]] = {
    "trainer": lambda one: {"trainer": one},
    "model, trainer": lambda one: {"model": one.model, "trainer": one},
    "optimizer, trainer": lambda one: {"o": one.optimizer, "trainer": one},
    "all": lambda one: {"model": one.model, "optimizer": one.optimizer, "trainer": one},
}


@pytest.mark.first(8)
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "not built"])
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(_PARTS, 2)))
def test_slots_follow_variables_that_have_another_name_here(
    before: str, after: str, is_built: bool, tmp_path: Path
) -> None:
    saved, here = Training(1), Training(1, scale=2.0)
    saved.step()
    path = Checkpoint(**_PARTS[before](saved)).write(tmp_path / "c")
    if is_built:
        here.step()
    Checkpoint(**_PARTS[after](here)).restore(path).assert_consumed()
    for one in (saved, here):
        one.step()
    for expected, value in zip(saved.state(), here.state(), strict=True):
        np.testing.assert_array_equal(value, expected)
