"""Snapshots in host memory: exact state, no wait for the devices, safe from donation, and sent to another worker."""

from __future__ import annotations

import dataclasses
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.memory import AllComponents, begin_snapshot, restore_snapshot
from mirrored.checkpoint.saved import Saved
from mirrored.elastic.snapshots import Snapshots, packed, unpacked


def program():
    strategy = mr.MirroredStrategy(num_replicas=4, devices=["CPU:0", "CPU:1"])
    with strategy.scope():
        w = mr.Variable(np.arange(3, dtype=np.float32), name="w")
        metric = mr.Variable(
            np.float32(0),
            trainable=False,
            synchronization=mr.VariableSynchronization.ON_READ,
            aggregation=mr.VariableAggregation.SUM,
        )
    checkpoint = Checkpoint(w=w, metric=metric, step=0)

    @mr.function
    def step():
        def replica():
            metric.assign_add(0.1 * (1 + mr.get_replica_context().replica_id_in_sync_group))
            w.assign(mr.get_replica_context().all_reduce("MEAN", w.read_value() * 1.5))

        strategy.run(replica)

    return checkpoint, step


def components(metric):
    return np.asarray(metric.stored()).tobytes()


def test_a_snapshot_has_the_state_of_its_step_although_later_steps_donate_the_buffers():
    checkpoint, step = program()
    step()
    checkpoint.step = 1
    w, metric = checkpoint.w.numpy().copy(), components(checkpoint.metric)
    pending = begin_snapshot(checkpoint)
    step()
    step()
    checkpoint.step = 3
    manifest = pending.finish()
    restore_snapshot(checkpoint, manifest)
    assert checkpoint.step == 1
    np.testing.assert_array_equal(checkpoint.w.numpy(), w)
    assert components(checkpoint.metric) == metric, "the component of every replica is restored, not a share of the sum"


def test_a_snapshot_restores_the_objects_of_another_call_and_what_they_create_later():
    first, step = program()
    step()
    optimizer = mr.optimizers.Adam(0.1)
    first.optimizer = optimizer
    optimizer.apply_gradients([(jnp.ones(3), first.w)])
    manifest = begin_snapshot(first).finish()
    second, _ = program()
    second.optimizer = mr.optimizers.Adam(0.1)
    restore_snapshot(second, manifest)
    assert components(second.metric) == components(first.metric)
    for mine, theirs in zip(second.optimizer.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_other_state_than_before_is_an_error():
    checkpoint, _ = program()
    manifest = begin_snapshot(checkpoint).finish()
    with pytest.raises(mr.errors.CheckpointMismatchError):
        restore_snapshot(Checkpoint(w=mr.Variable(np.zeros(5, np.float32))), manifest)


def test_a_snapshot_keeps_its_bits_on_the_way_to_another_worker():
    leaves = {
        "scalar": Saved("array", (), "float32", np.float32(1 / 3)),
        "half": Saved("array", (2,), "bfloat16", np.asarray(jnp.asarray([1.5, -0.0], jnp.bfloat16))),
        "empty": Saved("array", (0, 3), "int32", np.zeros((0, 3), np.int32)),
        "nan": Saved("array", (1,), "float64", np.array([np.nan])),
        "parts": AllComponents("components", (), "float32", np.arange(4, dtype=np.float32)),
        "sum": Saved("array", (), "float32", np.float32(3), np.arange(3, dtype=np.float32)),
        "step": Saved("number", value=7),
        "data": Saved("position", value={"reader": {"__tuple__": [1, None]}}),
    }
    head, parts = packed(Manifest(leaves, {"a": "scalar"}, {"optimizer": [["half"]]}))
    manifest = unpacked(head, np.concatenate(parts))
    assert (manifest.aliases, manifest.groups) == ({"a": "scalar"}, {"optimizer": [["half"]]})
    for name, saved in leaves.items():
        got = manifest.leaves[name]
        assert (type(got), got.kind, got.shape, got.dtype) == (type(saved), saved.kind, saved.shape, saved.dtype)
        if saved.is_array:
            assert np.shape(got.value) == np.shape(saved.value)
            assert np.asarray(got.value).tobytes() == np.asarray(saved.value).tobytes()
            np.testing.assert_array_equal(got.components, saved.components)
        else:
            assert got.value == saved.value


class Step:
    def __init__(self, fails, computed=False, may_finish=None):
        self.fails, self.computed, self.may_finish = fails, computed, may_finish
        self.has_begun = threading.Event()

    def wait(self):
        """The devices are done."""

    def is_computed(self):
        return self.computed

    def finish(self):
        self.has_begun.set()
        if self.may_finish is not None:
            assert self.may_finish.wait(30)
        if self.fails:
            raise RuntimeError("Gloo all-reduce failed")
        return Manifest({}, {}, {})


def test_the_newest_snapshot_is_kept_and_failed_ones_are_not():
    done = []
    snapshots = Snapshots(done.append, lambda error: True)

    for step in range(0, 60, 10):
        snapshots.add(step, Step(fails=step in (40, 50)))
        snapshots.wait()
        assert snapshots.steps == [min(step, 30)]
    assert done == [0, 10, 20, 30]
    snapshots.forget_all_but(30)
    assert snapshots.steps == [30]
    snapshots.forget_all_but(None)
    assert snapshots.steps == []


def test_snapshots_that_wait_for_a_slow_copy_are_dropped_for_a_newer_one_that_is_computed():
    done, may_finish = [], threading.Event()
    snapshots = Snapshots(done.append)
    first, kept = Step(fails=False, may_finish=may_finish), []
    snapshots.add(0, first)
    assert first.has_begun.wait(30)
    for step in range(1, 9):
        # A step in flight, or one that has failed, does not replace a snapshot that the devices have computed.
        pending = Step(fails=step > 6, computed=step <= 4)
        kept.append(weakref.ref(pending))
        snapshots.add(step, pending)
        del pending
    assert [one() is not None for one in kept] == [False] * 3 + [True] * 5
    may_finish.set()
    snapshots.wait()
    assert done == [0, 4, 5, 6]
    assert snapshots.steps == [6]


def test_whether_a_snapshot_is_computed_and_has_not_failed():
    class Failed:
        """As an array whose step has failed."""

        def is_deleted(self):
            return False

        def is_ready(self):
            return True

        def block_until_ready(self):
            raise jax.errors.JaxRuntimeError("Gloo all-reduce failed")

    checkpoint, step = program()
    step()
    pending = begin_snapshot(checkpoint)
    pending.wait()
    assert pending.is_computed()
    assert not dataclasses.replace(pending, arrays={**pending.arrays, "failed": Failed()}).is_computed()
    pending.arrays["w"].delete()
    assert not pending.is_computed()


@pytest.mark.parametrize("is_change", [False, True])
def test_a_snapshot_that_fails_is_logged_unless_the_workers_change(caplog, is_change):
    asked = []
    snapshots = Snapshots(lambda step: None, lambda error: asked.append(error) or is_change)
    with caplog.at_level("WARNING", "mirrored.elastic"):
        snapshots.add(10, Step(fails=True))
        snapshots.wait()
        snapshots.add(20, Step(fails=False))
        snapshots.add(30, Step(fails=True))
        snapshots.wait()
    assert snapshots.steps == [20]
    assert [str(error) for error in asked] == ["Gloo all-reduce failed"] * 2
    failed = "failed: RuntimeError: Gloo all-reduce failed; if the workers change, training continues from"
    expected = [
        f"the snapshot after step 10 {failed} the beginning or the newest checkpoint",
        f"the snapshot after step 30 {failed} step 20",
    ]
    assert [record.getMessage() for record in caplog.records] == ([] if is_change else expected)


def test_an_error_after_the_copy_is_logged_too(caplog):
    def completed(step):
        raise MemoryError("no space for the copy")

    snapshots = Snapshots(completed)
    with caplog.at_level("WARNING", "mirrored.elastic"):
        snapshots.add(10, Step(fails=False))
        snapshots.wait()
    assert "MemoryError: no space for the copy" in caplog.text
