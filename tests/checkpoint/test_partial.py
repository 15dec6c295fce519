"""Checkpoints that match partially or not at all: what is restored and reported, and that errors change nothing."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

import mirrored as mr
from checkpoint.programs import Model, Training
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.errors import CheckpointMismatchError


@pytest.fixture
def saved(tmp_path):
    path = Checkpoint(a=mr.Variable(1.0), b=mr.Variable([2.0, 3.0]), step=4).write(tmp_path / "c")
    return path


def test_partial_restore_reports(saved):
    a, extra = mr.Variable(0.0), mr.Variable(9.0)
    status = Checkpoint(a=a, extra=extra).restore(saved)
    assert status.matched == ("a",)
    assert status.missing == ("extra",)
    assert set(status.unexpected) == {"b", "step"}
    assert a.numpy() == 1.0
    assert extra.numpy() == 9.0
    assert "1 missing in the checkpoint" in status.report
    assert "2 unexpected in the checkpoint" in status.report
    status.assert_nontrivial_match().expect_partial()
    with pytest.raises(CheckpointMismatchError, match="assert_consumed"):
        status.assert_consumed()
    with pytest.raises(AssertionError, match="every name of the program is in the checkpoint"):
        status.assert_existing_objects_matched()


def test_existing_objects_matched(saved):
    Checkpoint(a=mr.Variable(0.0)).restore(saved).assert_existing_objects_matched()


def test_partial_restore_is_logged_unless_expected(saved, caplog):
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        Checkpoint(a=mr.Variable(0.0)).restore(saved).expect_partial()
        gc.collect()
        assert not caplog.records
        Checkpoint(a=mr.Variable(0.0)).restore(saved)
        gc.collect()
    assert "was partially restored" in caplog.text
    assert "b  float32[2]" in caplog.text


def test_other_shape_changes_nothing(saved):
    a, b = mr.Variable(0.0), mr.Variable([0.0, 0.0, 0.0])
    checkpoint = Checkpoint(a=a, b=b, step=0)
    expected = r"b  float32\[2\] in the checkpoint, float32\[3\] in the program"
    with pytest.raises(CheckpointMismatchError, match=expected):
        checkpoint.restore(saved)
    assert (a.numpy(), b.numpy().tolist(), checkpoint.step) == (0.0, [0.0, 0.0, 0.0], 0)


def test_other_dtype_changes_nothing(saved):
    a, b = mr.Variable(0.0), mr.Variable([0, 0])
    with pytest.raises(ValueError, match=r"b  float32\[2\] in the checkpoint, int32\[2\] in the program"):
        Checkpoint(a=a, b=b).restore(saved)
    assert a.numpy() == 0.0


def test_other_kind_changes_nothing(saved):
    a = mr.Variable(0.0)
    with pytest.raises(CheckpointMismatchError, match=r"step  a number in the checkpoint, int32\[\] in the program"):
        Checkpoint(a=a, step=mr.Variable(0)).restore(saved)
    assert a.numpy() == 0.0


def test_iterator_that_refuses_changes_nothing(tmp_path):
    class Iterator:
        def __init__(self, refuses=False):
            self.at, self.refuses = 0, refuses

        def get_state(self):
            return self.at

        def set_state(self, state):
            if self.refuses:
                raise RuntimeError("no way back")
            self.at = state

    def make(refuses):
        return Checkpoint(v=mr.Variable(0.0), first=Iterator(), second=Iterator(refuses))

    source = make(False)
    source.v.assign(1.0)
    source.first.at = source.second.at = 5
    path = source.write(tmp_path / "c")
    target = make(True)
    with pytest.raises(RuntimeError, match="no way back"):
        target.restore(path)
    assert (float(target.v.numpy()), target.first.at, target.second.at) == (0.0, 0, 0)


def test_failure_in_the_middle_of_assigning_undoes_it(tmp_path, monkeypatch):
    variables = [mr.Variable(float(k), name=f"v{k}") for k in range(4)]
    path = Checkpoint(variables=variables).write(tmp_path / "c")
    for variable in variables:
        variable.assign(9.0)
    assign = mr.Variable.assign

    def failing(self, value, *args, **kwargs):
        if self is variables[2]:
            raise MemoryError("out of memory")
        return assign(self, value, *args, **kwargs)

    monkeypatch.setattr(mr.Variable, "assign", failing)
    with pytest.raises(MemoryError, match="out of memory"):
        Checkpoint(variables=variables).restore(path)
    assert [float(variable.numpy()) for variable in variables] == [9.0] * 4


@pytest.mark.long
def test_another_program_gives_a_short_diff(tmp_path):
    source = {f"layer{k}": np.zeros(3) for k in range(300)}
    target = {f"block{k}": {"w": np.zeros((2, 3))} for k in range(300)}
    path = Checkpoint(model=source).write(tmp_path / "c")
    with pytest.raises(
        CheckpointMismatchError, match="no name in common with the program; nothing was restored"
    ) as caught:
        Checkpoint(net=target).restore(path)
    assert len(str(caught.value).splitlines()) < 30
    assert "and 292 more" in str(caught.value)


def test_renamed_part_is_recognised(tmp_path):
    path = Checkpoint(model=Model()).write(tmp_path / "c")
    with pytest.raises(CheckpointMismatchError, match=r"the state of 'net' is in the checkpoint as 'model'"):
        Checkpoint(net=Model()).restore(path)


def test_renamed_variable_is_suggested(saved):
    status = Checkpoint(a=mr.Variable(0.0), bb=mr.Variable([0.0, 0.0])).restore(saved).expect_partial()
    assert "bb  float32[2]" in status.report


def test_manager_is_strict_unless_told(tmp_path):
    training = Training(2)
    training.step()
    first = CheckpointManager(Checkpoint(model=training.model, optimizer=training.optimizer), tmp_path)
    first.save(1)
    first.wait()
    model = Model(0.0)
    model.extra = mr.Variable(5.0)
    manager = CheckpointManager(Checkpoint(model=model), tmp_path)
    with pytest.raises(CheckpointMismatchError, match="partial=True"):
        manager.restore_latest()
    np.testing.assert_array_equal(model.kernel.numpy(), np.zeros((3, 2)))
    assert manager.restore_latest(partial=True) == 1
    np.testing.assert_array_equal(model.kernel.numpy(), training.model.kernel.numpy())
    assert manager.restored is not None
    assert manager.restored.missing == ("model/extra",)


def test_optimizer_without_its_model_needs_building(tmp_path):
    training = Training(2)
    training.step()
    path = Checkpoint(optimizer=training.optimizer).write(tmp_path / "c")
    again = Training(2)
    again.optimizer.build(again.model.variables)
    Checkpoint(optimizer=again.optimizer).restore(path).assert_consumed()
    for here, there in zip(again.optimizer.variables, training.optimizer.variables, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())


def test_parts_that_come_later_are_restored_then(saved):
    checkpoint = Checkpoint(a=mr.Variable(0.0))
    status = checkpoint.restore(saved)
    b = mr.Variable([0.0, 0.0])
    checkpoint.b = b
    assert b.numpy().tolist() == [2.0, 3.0]
    checkpoint.step = 0
    assert checkpoint.step == 4
    status.assert_consumed()


def test_what_was_there_is_not_restored_again(saved):
    a = mr.Variable(0.0)
    checkpoint = Checkpoint(a=a)
    checkpoint.restore(saved).expect_partial()
    a.assign(7.0)
    checkpoint.b = mr.Variable([0.0, 0.0])
    assert a.numpy() == 7.0


def test_attributes_of_modules_that_come_later_are_restored_then(tmp_path):
    tf = mr.tf

    def build(module, value):
        module.inner = tf.Module()
        module.inner.w = mr.Variable(value)

    source, target = tf.Module(), tf.Module()
    build(source, 3.0)
    path = Checkpoint(net=source).write(tmp_path / "c")
    status = Checkpoint(net=target).restore(path)
    build(target, 0.0)
    assert target.inner.w.numpy() == 3.0
    status.assert_consumed()


def test_what_comes_into_lists_and_dicts_later_is_restored_then(tmp_path):
    path = Checkpoint(
        many=[mr.Variable(float(n)) for n in range(1, 5)], named={"one": mr.Variable(6.0), "two": mr.Variable(7.0)}
    ).write(tmp_path / "c")
    many, checkpoint = [], Checkpoint(named={})
    status = checkpoint.restore(path)
    checkpoint.many = many
    checkpoint.many.append(mr.Variable(0.0))
    checkpoint.many += [mr.Variable(0.0)]
    checkpoint.many.extend([mr.Variable(0.0)])
    checkpoint.many.insert(3, mr.Variable(0.0))
    checkpoint.named["one"] = mr.Variable(0.0)
    checkpoint.named.update(two=mr.Variable(0.0))
    assert [v.numpy() for v in checkpoint.many] == [1.0, 2.0, 3.0, 4.0]
    assert {name: v.numpy() for name, v in checkpoint.named.items()} == {"one": 6.0, "two": 7.0}
    status.assert_consumed()
    assert len(many) == 4
    checkpoint.many[0] = mr.Variable(9.0)
    assert many[0].numpy() == 9.0  # restored once only


def test_state_made_inside_a_step_is_restored_before_the_step_uses_it(tmp_path):
    tf = mr.tf
    source, target = tf.Module(), tf.Module()
    source.w = mr.Variable(3.0)
    path = Checkpoint(net=source).write(tmp_path / "c")
    status = Checkpoint(net=target).restore(path)

    @mr.function
    def step():
        if not hasattr(target, "w"):
            target.w = mr.Variable(1.0)
        return target.w.assign_add(1.0)

    assert step() == 4.0
    assert step() == 5.0
    status.assert_consumed()
    target.other = mr.Variable(0.0)
    assert target.w.numpy() == 5.0


@pytest.mark.parametrize("another_waits", [False, True])
def test_state_set_inside_a_step_that_was_made_before_keeps_its_value_and_is_told(tmp_path, caplog, another_waits):
    tf = mr.tf
    if another_waits:
        other = tf.Module()
        other.w = mr.Variable(0.0)
        longer = Checkpoint(net=other)
        longer.restore(longer.write(tmp_path / "other"))
        late = Checkpoint(net=tf.Module(), more=tf.Module())
        late.restore(longer.write(tmp_path / "late")).expect_partial()
    source, target = tf.Module(), tf.Module()
    source.w = mr.Variable(3.0)
    path = Checkpoint(net=source).write(tmp_path / "c")
    w = mr.Variable(1.0)
    checkpoint = Checkpoint(net=target)
    status = checkpoint.restore(path).expect_partial()

    @mr.function
    def step():
        target.w = w
        return w.assign_add(1.0)

    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        step()
    assert "created in a step" in caplog.text
    step()
    target.other = mr.Variable(0.0)
    assert target.w.numpy() == 3.0
    assert status.missing == ("net/other", "net/w")


def test_what_comes_later_with_another_shape_is_refused(saved):
    checkpoint = Checkpoint(a=mr.Variable(0.0))
    checkpoint.restore(saved).expect_partial()
    b = mr.Variable([5.0])
    with pytest.raises(CheckpointMismatchError, match="does not match the program"):
        checkpoint.b = b
    assert b.numpy().tolist() == [5.0]


def test_slots_are_made_in_the_strategy_of_their_variables(tmp_path):
    training = Training(2)
    training.step()
    path = Checkpoint(model=training.model, optimizer=training.optimizer).write(tmp_path / "c")
    again = Training(4, scale=0.0)
    Checkpoint(model=again.model, optimizer=again.optimizer).restore(path)
    assert all(slot.num_replicas == 4 for slot in again.optimizer.variables)
    assert jax.device_count() >= 4


@pytest.mark.long
def test_a_status_that_lives_until_the_program_ends_is_told(saved):
    program = """
        import sys
        import mirrored as mr
        from mirrored.checkpoint import Checkpoint
        status = Checkpoint(a=mr.Variable(0.0)).restore(sys.argv[1])
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program), str(saved)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was partially restored") == 1
    assert "Exception ignored" not in done.stderr
