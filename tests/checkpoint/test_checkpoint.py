"""Saving and restoring the state of one program by name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import types
from collections import UserList, namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from checkpoint.earlier_versions import as_by_earlier_version, save_as_by_earlier_version
from checkpoint.programs import Model, Training
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader, objects
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointMismatchError,
    ContextError,
    LostStateError,
    MissingCheckpointError,
)
from mirrored.values.tensor_shape import TensorShape

ON_READ = mr.VariableSynchronization.ON_READ
Aggregation = mr.VariableAggregation


def names_of(path):
    return set(CheckpointReader(path).names)


def test_names_are_paths(tmp_path):
    model = Model()
    path = Checkpoint(model=model, table={"a/b": mr.Variable(1.0), 3: [mr.Variable(2.0)]}).save(tmp_path / "c")
    assert path == str(tmp_path / "c-1")
    assert names_of(path) == {"model/kernel", "model/layers/0", "table/a%2Fb", "table/3/0", "save_counter"}


def test_shortest_path_is_the_name_and_others_lead_to_it(tmp_path):
    model = Model()
    path = Checkpoint(deep={"inner": [model]}, model=model).write(tmp_path / "c")
    assert names_of(path) == {"model/kernel", "model/layers/0"}
    other = Model(0.0)
    Checkpoint(deep={"inner": [other]}).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.kernel.numpy(), model.kernel.numpy())


def test_objects_that_point_at_each_other(tmp_path):
    parent, child = Model(), Model(2.0)
    parent.child, child.parent = child, parent
    path = Checkpoint(model=parent).write(tmp_path / "c")
    assert names_of(path) == {"model/kernel", "model/layers/0", "model/child/kernel", "model/child/layers/0"}


def test_save_counts_and_the_count_is_restored(tmp_path):
    checkpoint = Checkpoint(v=mr.Variable(1.0))
    assert [checkpoint.save(tmp_path / "c") for _ in range(2)] == [str(tmp_path / "c-1"), str(tmp_path / "c-2")]
    again = Checkpoint(v=mr.Variable(0.0))
    again.restore(tmp_path / "c-2").assert_consumed()
    assert again.save(tmp_path / "c") == str(tmp_path / "c-3")


def test_numbers_arrays_and_generators(tmp_path):
    class Progress:
        def __init__(self, epoch, best):
            self.epoch, self.best, self.seen = epoch, best, np.zeros(2)

    rng = np.random.default_rng(0)
    parts = {
        "step": 7, "rate": 0.1, "flag": True, "z": 1 + 2j, "small": np.float32(2.5),
        "history": {"loss": [1.0, 0.5]}, "progress": Progress(3, 0.25), "rng": rng,
        "host": np.arange(3.0), "device": jnp.ones(2, jnp.bfloat16), "key": jax.random.key(3),
    }  # fmt: skip
    checkpoint = Checkpoint(**parts)
    path = checkpoint.write(tmp_path / "c")
    drawn = rng.normal(size=4)
    checkpoint.step, checkpoint.rate, checkpoint.flag = 0, 0.0, False
    checkpoint.z, checkpoint.small = 0j, np.float32(0)
    parts["history"]["loss"][:] = [9.0, 9.0]
    progress, host = parts["progress"], parts["host"]
    progress.epoch, progress.best = 0, 0.0
    progress.seen[:] = 5
    host[:] = 9
    checkpoint.device, checkpoint.key = jnp.zeros(2, jnp.bfloat16), jax.random.key(0)

    checkpoint.restore(path).assert_consumed()
    assert (checkpoint.step, checkpoint.rate, checkpoint.flag, checkpoint.z) == (7, 0.1, True, 1 + 2j)
    assert checkpoint.small == np.float32(2.5)
    assert isinstance(checkpoint.small, np.float32)
    assert parts["history"] == {"loss": [1.0, 0.5]}
    assert (progress.epoch, progress.best) == (3, 0.25)
    np.testing.assert_array_equal(progress.seen, [0, 0])
    assert checkpoint.host is host
    np.testing.assert_array_equal(host, [0, 1, 2])
    np.testing.assert_array_equal(np.asarray(checkpoint.device, np.float32), [1, 1])
    assert bool(checkpoint.key == jax.random.key(3))
    np.testing.assert_array_equal(rng.normal(size=4), drawn)


def test_numbers_in_a_model_are_its_configuration(tmp_path):
    path = Checkpoint(model=Model()).write(tmp_path / "c")
    model = Model()
    model.units = 5
    Checkpoint(model=model).restore(path).assert_consumed()
    assert model.units == 5


@pytest.mark.parametrize(
    ("saved", "here"),
    [(0.75, np.int32(0)), (np.float32(0.75), np.int64(0)), (5, np.bool_(False)), (1j, np.float32(0))],
)
def test_a_number_of_another_kind_that_the_dtype_of_a_scalar_changes_is_refused(tmp_path, saved, here):
    path = Checkpoint(best=saved).write(tmp_path / "c")
    checkpoint = Checkpoint(best=here)
    with pytest.raises(CheckpointMismatchError, match=rf"best  the number .* a number of {here.dtype} in the program"):
        checkpoint.restore(path)
    assert checkpoint.best == here


@pytest.mark.parametrize(
    ("saved", "here"), [(0.1, np.float32(0)), (3.0, np.int32(0)), (float("inf"), np.float16(0)), (7, 0.5), (0.5, 7)]
)
def test_a_number_that_fits_is_restored(tmp_path, saved, here):
    checkpoint = Checkpoint(best=here)
    checkpoint.restore(Checkpoint(best=saved).write(tmp_path / "c")).assert_consumed()
    assert checkpoint.best == saved
    assert type(checkpoint.best) is type(saved)


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([b"a"]), np.array(["2026-01-01"], "M8[D]"), np.zeros(1, "i4,f4"), np.array([None])],
)
def test_an_array_in_a_container_that_cannot_be_saved_is_refused(tmp_path, array):
    with pytest.raises(ArgumentError, match=r"history/0/names is an array of .*\n.*saves arrays of numbers"):
        Checkpoint(history=[{"names": array}]).write(tmp_path / "c")
    assert not list(tmp_path.iterdir())
    Checkpoint(model=Holder(names=array, v=mr.Variable(1.0))).write(tmp_path / "c")


class Slotted:
    __slots__ = ("__w", "b")

    def __init__(self, value):
        self.__w, self.b = mr.Variable(value), mr.Variable(value)

    def values(self):
        return [float(self.__w.numpy()), float(self.b.numpy())]


def test_private_slots_are_state(tmp_path):
    other = Slotted(2.0)
    Checkpoint(part=other).restore(Checkpoint(part=Slotted(1.0)).write(tmp_path / "c")).assert_consumed()
    assert other.values() == [1.0, 1.0]


def test_a_random_generator_of_another_kind_is_refused(tmp_path):
    path = Checkpoint(rng=np.random.default_rng(0)).write(tmp_path / "c")
    with pytest.raises(CheckpointMismatchError, match="rng  a position in the checkpoint, a position of Philox in"):
        Checkpoint(rng=np.random.Generator(np.random.Philox(0))).restore(path)


class Holder:
    def __init__(self, **parts):
        vars(self).update(parts)


def test_numbers_of_objects_in_objects(tmp_path):
    inner = Holder(depth=4)
    stats = Holder(epoch=3, counts=[1, inner])
    checkpoint = Checkpoint(trainer=Holder(stats=stats))
    path = checkpoint.write(tmp_path / "c")
    assert names_of(path) == {"trainer/stats/epoch", "trainer/stats/counts/0", "trainer/stats/counts/1/depth"}
    stats.epoch, stats.counts[0], inner.depth = 9, 9, 9
    checkpoint.read(path).assert_consumed()
    assert (stats.epoch, stats.counts[0], inner.depth) == (3, 1, 4)


def test_numbers_of_objects_in_a_model_are_its_configuration(tmp_path):
    path = Checkpoint(model=Holder(config=Holder(units=3, more=Holder(rate=0.1)), w=mr.Variable(1.0))).write(
        tmp_path / "c"
    )
    assert names_of(path) == {"model/w"}


def test_a_checkpoint_without_nested_numbers_restores(tmp_path):
    path = as_by_earlier_version(Checkpoint(trainer=Holder(step=7)).write(tmp_path / "c"))
    trainer = Holder(step=0, stats=Holder(epoch=3, best=0.5))
    Checkpoint(trainer=trainer).read(path).assert_consumed()
    assert (trainer.step, trainer.stats.epoch) == (7, 3)


def test_a_missing_nested_number_is_reported(tmp_path):
    path = Checkpoint(trainer=Holder(stats=Holder(epoch=7))).write(tmp_path / "c")
    checkpoint = Checkpoint(trainer=Holder(stats=Holder(epoch=0, best=0.5)))
    assert checkpoint.read(path).expect_partial().missing == ("trainer/stats/best",)


KEYS = {
    "tuples": [("a", "b"), ("a", "c")],
    "numbers": [(0, 1), (0, 2)],
    "nested": [("a", (1, None)), ("a", (2, None))],
    "sets": [frozenset("ab"), frozenset("ac")],
    "NumPy integers": [np.int64(1), np.int64(2)],
    "bytes": [b"a/", b"b"],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_name_values_in_any_order(tmp_path, keys):
    path = Checkpoint(edges={key: mr.Variable(float(at)) for at, key in enumerate(keys)}).write(tmp_path / "c")
    edges = {key: mr.Variable(9.0) for key in reversed(keys)}
    Checkpoint(edges=edges).read(path).assert_consumed()
    assert [float(edges[key].numpy()) for key in keys] == [0.0, 1.0]


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_a_checkpoint_with_positions_for_keys_restores(tmp_path, keys):
    def made(value):
        edges = {
            key: {"w": mr.Variable(value + at), "more": {key: [mr.Variable(value)]}} for at, key in enumerate(keys)
        }
        with mr.GradientTape() as tape:
            loss = sum(one["w"] * 1.0 for one in edges.values())
        variables = [one["w"] for one in edges.values()]
        optimizer = mr.optimizers.SGD(0.1, momentum=0.9)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return edges, optimizer

    edges, optimizer = made(1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_key_text", lambda key: key if isinstance(key, str) else None)  # an earlier version
        path = as_by_earlier_version(Checkpoint(edges=edges, optimizer=optimizer).write(tmp_path / "c"))
    assert "edges/#1/more/#0/0" in names_of(path)
    others, other = made(5.0)
    Checkpoint(edges=others, optimizer=other).read(path).assert_consumed()
    for key in keys:
        assert others[key]["w"].numpy() == edges[key]["w"].numpy()
        assert others[key]["more"][key][0].numpy() == 1.0


@pytest.mark.parametrize("kind", [types.SimpleNamespace, argparse.Namespace])
@pytest.mark.parametrize("is_part", [False, True])
def test_state_in_namespaces(tmp_path, kind, is_part):
    def make(value):
        state = kind(
            w=mr.Variable(value), inner=kind(epoch=int(value)), name="a", layers=UserList([mr.Variable(value)])
        )
        return state, Checkpoint(state=state if is_part else {"model": Holder(state=state)})

    path = make(3.0)[1].write(tmp_path / "c")
    at = "state" if is_part else "state/model/state"
    assert names_of(path) == {f"{at}/w", f"{at}/layers/0"}  # numbers beside variables are configuration
    state, checkpoint = make(0.0)
    checkpoint.restore(path).assert_consumed()
    assert [float(state.w), float(state.layers[0]), state.inner.epoch] == [3.0, 3.0, 0]
    assert names_of(Checkpoint(state=kind(epoch=1)).write(tmp_path / "n")) == {"state/epoch"}


def test_one_array_under_two_names_is_two_pieces_of_state(tmp_path):
    zero = jnp.zeros(())
    state = {"a": zero, "b": zero}
    checkpoint = Checkpoint(state=state)
    path = checkpoint.write(tmp_path / "c")
    state.update(a=jnp.ones(()), b=jnp.ones(()))
    checkpoint.restore(path).assert_consumed()
    assert [float(state["a"]), float(state["b"])] == [0.0, 0.0]


def test_pytrees_that_cannot_be_changed_are_replaced(tmp_path):
    State = namedtuple("State", ["count", "inner"])

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        weight: jax.Array
        other: jax.Array

    state = State(jnp.int32(3), (jnp.ones(2), jnp.zeros(1)))
    checkpoint = Checkpoint(state=state, model=Frozen(jnp.ones(2), jnp.ones(1)))
    path = checkpoint.write(tmp_path / "c")
    checkpoint.state = State(jnp.int32(0), (jnp.zeros(2), jnp.ones(1)))
    checkpoint.model = Frozen(jnp.zeros(2), jnp.zeros(1))
    checkpoint.restore(path).assert_consumed()
    assert isinstance(checkpoint.state, State)
    assert int(checkpoint.state.count) == 3
    np.testing.assert_array_equal(checkpoint.state.inner[0], [1, 1])
    np.testing.assert_array_equal(checkpoint.state.inner[1], [0])
    np.testing.assert_array_equal(checkpoint.model.weight, [1, 1])
    np.testing.assert_array_equal(checkpoint.model.other, [1])


@pytest.mark.first(18)
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int4", "uint4", "int8", "int32", "uint32", "float16", "bfloat16", "float32", "float8_e4m3fn",
     "float8_e5m2", "complex64"],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    value = jnp.ones(shape, dtype)
    holder = {"x": value}
    checkpoint = Checkpoint(holder=holder)
    path = checkpoint.write(tmp_path / "c")
    holder["x"] = jnp.zeros(shape, dtype)
    checkpoint.restore(path).assert_consumed()
    assert holder["x"].dtype == value.dtype
    np.testing.assert_array_equal(np.asarray(holder["x"]), np.asarray(value))


@pytest.mark.parametrize("saved", [0, 1, 2])
@pytest.mark.parametrize("restored", [0, 1, 3])
def test_sync_on_read_by_rule(tmp_path, saved, restored):
    def make(replicas):
        strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else mr.get_strategy()
        with strategy.scope():
            return strategy, {
                "mirrored": mr.Variable(3.0),
                "total": mr.Variable(0.0, synchronization=ON_READ, aggregation=Aggregation.SUM),
                "mean": mr.Variable(0.0, synchronization=ON_READ, aggregation=Aggregation.MEAN),
                "first": mr.Variable(0.0, synchronization=ON_READ, aggregation=Aggregation.ONLY_FIRST_REPLICA),
                "count": mr.Variable(0, synchronization=ON_READ, aggregation=Aggregation.SUM),
            }

    strategy, made = make(saved)
    if saved:

        def fill():
            replica = mr.get_replica_context().replica_id_in_sync_group
            for name in ("total", "mean", "first"):
                made[name].assign(replica + 3.0)
            made["count"].assign(replica + 3)

        strategy.run(fill)
    else:
        for name in ("total", "mean", "first"):
            made[name].assign(3.0)
        made["count"].assign(3)
    expected = {name: variable.numpy() for name, variable in made.items()}
    path = Checkpoint(**made).write(tmp_path / "c")

    _, other = make(restored)
    Checkpoint(**other).restore(path).assert_consumed()
    for name, value in expected.items():
        np.testing.assert_allclose(other[name].numpy(), value, rtol=1e-6)
    if restored:
        share = float(expected["total"]) / restored
        np.testing.assert_allclose([one.numpy() for one in other["total"].values], [share] * restored, rtol=1e-6)
        assert [one.numpy() for one in other["mean"].values] == [expected["mean"]] * restored


@pytest.mark.parametrize(("saved", "restored", "components"), [(2, 4, [3, 4, 9, 9]), (4, 2, [3, 4]), (2, 2, [3, 4])])
def test_components_that_nothing_aggregates_go_to_their_replicas(tmp_path, saved, restored, components):
    def make(replicas, value):
        strategy = mr.MirroredStrategy(jax.devices()[:replicas])
        with strategy.scope():
            return strategy, mr.Variable(value, synchronization=ON_READ)

    strategy, variable = make(saved, 0.0)
    strategy.run(lambda: variable.assign(mr.get_replica_context().replica_id_in_sync_group + 3.0))
    path = Checkpoint(v=variable).write(tmp_path / "c")
    _, other = make(restored, 9.0)
    Checkpoint(v=other).restore(path).assert_consumed()
    assert [float(one.numpy()) for one in other.values] == components


def test_components_and_one_value_stand_for_each_other(tmp_path):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        several = mr.Variable(0.0, synchronization=ON_READ)
    strategy.run(lambda: several.assign(mr.get_replica_context().replica_id_in_sync_group + 3.0))
    plain = mr.Variable(0.0)
    Checkpoint(v=plain).restore(Checkpoint(v=several).write(tmp_path / "a")).assert_consumed()
    assert plain.numpy() == 3.0
    plain.assign(8.0)
    Checkpoint(v=several).restore(Checkpoint(v=plain).write(tmp_path / "b")).assert_consumed()
    assert [float(one.numpy()) for one in several.values] == [8.0, 8.0]


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.first(1)
def test_training_goes_on_as_if_it_had_not_stopped(tmp_path, replicas):
    first = Training(2)
    for _ in range(2):
        first.step()
    path = Checkpoint(model=first.model, optimizer=first.optimizer).save(tmp_path / "c")
    first.step()

    second = Training(replicas, scale=0.0)
    Checkpoint(model=second.model, optimizer=second.optimizer).restore(path).assert_consumed()
    assert int(second.optimizer.iterations.numpy()) == 2
    second.step()
    for here, there in zip(second.state(), first.state(), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-7)


PARTS = {
    "model": lambda training: Checkpoint(model=training.model),
    "both": lambda training: Checkpoint(model=training.model, optimizer=training.optimizer),
}


@pytest.mark.parametrize("saved", PARTS)
@pytest.mark.parametrize("restored", PARTS)
def test_slots_of_an_optimizer_without_slots_are_restored_under_any_of_its_paths(tmp_path, saved, restored):
    first, second = Training(2), Training(2, scale=0.0)
    for training in (first, second):
        training.model.optimizer = training.optimizer
    first.step()
    path = PARTS[saved](first).save(tmp_path / "c")
    PARTS[restored](second).restore(path).assert_consumed()
    first.step()
    second.step()
    for here, there in zip(second.state(), first.state(), strict=True):
        np.testing.assert_array_equal(here, there)


def test_on_the_same_number_of_replicas_every_bit_is_restored(tmp_path):
    first, second = Training(2), Training(2, scale=0.0)
    for _ in range(3):
        first.step()
    path = Checkpoint(model=first.model, optimizer=first.optimizer).save(tmp_path / "c")
    Checkpoint(model=second.model, optimizer=second.optimizer).restore(path)
    first.step()
    second.step()
    for here, there in zip(second.state(), first.state(), strict=True):
        np.testing.assert_array_equal(here, there)


def test_slots_go_by_the_names_of_their_variables(tmp_path):
    training = Training(2)
    training.step()
    path = Checkpoint(model=training.model, optimizer=training.optimizer).write(tmp_path / "c")
    slots = {"slots/model/kernel/mu", "slots/model/kernel/nu", "slots/model/layers/0/mu", "slots/model/layers/0/nu"}
    expected = {f"optimizer/{one}" for one in [*slots, "iterations", "learning_rate", "slots/0/count"]}
    assert {name for name in names_of(path) if name.startswith("optimizer/")} == expected


def test_optimizer_of_two_models_built_at_different_times(tmp_path):
    def make():
        a, b, optimizer = mr.Variable([1.0, 2.0], name="a"), mr.Variable([3.0], name="b"), mr.optimizers.Adam(0.1)
        return a, b, optimizer, Checkpoint(a=a, b=b, optimizer=optimizer)

    a, b, optimizer, checkpoint = make()
    optimizer.apply_gradients([(jnp.ones(2), a)])
    optimizer.apply_gradients([(jnp.ones(2), a), (jnp.ones(1), b)])
    path = checkpoint.save(tmp_path / "c")
    c, d, other, again = make()
    again.restore(path).assert_consumed()
    for one in (optimizer, other):
        one.apply_gradients([(jnp.ones(2), a if one is optimizer else c), (jnp.ones(1), b if one is optimizer else d)])
    np.testing.assert_array_equal(a.numpy(), c.numpy())
    np.testing.assert_array_equal(b.numpy(), d.numpy())
    assert [len(group.variables) for group in other.made().groups] == [1, 1]


def test_position_of_an_iterator(tmp_path):
    class Iterator:
        def __init__(self):
            self.at = 0

        def __next__(self):
            self.at += 1
            return self.at

        def get_state(self):
            return {"at": self.at, "raw": b"\x00\x01", "shape": (1, 2)}

        def set_state(self, state):
            assert state["raw"] == b"\x00\x01"
            assert state["shape"] == (1, 2)
            self.at = state["at"]

    iterator = Iterator()
    checkpoint = Checkpoint(dataset_iterator=iterator)
    next(iterator)
    path = checkpoint.save(tmp_path / "c")
    assert next(iterator) == 2
    checkpoint.restore(path).assert_consumed()
    assert next(iterator) == 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_position_of_a_distributed_dataset(tmp_path, replicas):
    def values(item):
        return [np.asarray(one).tolist() for one in mr.get_strategy().experimental_local_results(item)]

    dataset = mr.data.Dataset.range(24).shuffle(24, seed=1).batch(4)
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    for _ in range(2):
        next(iterator)
    path = Checkpoint(dataset_iterator=iterator).save(tmp_path / "c")
    expected = [sum(values(next(iterator)), []) for _ in range(2)]
    other = mr.MirroredStrategy(jax.devices()[:replicas])
    with iter(other.experimental_distribute_dataset(dataset)) as again:
        Checkpoint(dataset_iterator=again).restore(path).assert_consumed()
        found = []
        for _ in range(2):
            item = next(again)
            found.append(sum(([one] if np.ndim(one) == 0 else np.asarray(one).tolist() for one in
                              other.experimental_local_results(item)), []))  # fmt: skip
    iterator.close()
    assert found == expected


def test_restore_of_nothing(tmp_path):
    v = mr.Variable(1.0)
    status = Checkpoint(v=v).restore(None)
    assert v.numpy() == 1.0
    with pytest.raises(CheckpointMismatchError, match=r"no checkpoint was given \(None\)"):
        status.assert_consumed()
    with pytest.raises(AssertionError, match="no checkpoint was given"):
        status.assert_existing_objects_matched()


def test_missing_checkpoint_names_what_there_is(tmp_path):
    v = mr.Variable(1.0)
    Checkpoint(v=v).save(tmp_path / "c")
    with pytest.raises(MissingCheckpointError, match=r"nothing-1 does not exist(.|\n)*pass one of those in .*: c-1"):
        Checkpoint(v=v).restore(tmp_path / "nothing-1")
    with pytest.raises(FileNotFoundError, match=r"has no mirrored\.json"):
        Checkpoint(v=v).restore(tmp_path)


def test_write_replaces(tmp_path):
    v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    for value in (1.0, 2.0):
        v.assign(value)
        checkpoint.write(tmp_path / "c")
    assert [one.name for one in tmp_path.iterdir()] == ["c"]
    v.assign(0.0)
    checkpoint.read(tmp_path / "c").assert_consumed()
    assert v.numpy() == 2.0


def test_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    v = mr.Variable(1.0)
    assert Checkpoint(v=v).save("c") == "c-1"
    Checkpoint(v=v).restore("c-1").assert_consumed()


def test_state_is_as_it_was_when_save_returned(tmp_path):
    array, v = np.zeros(1000), mr.Variable(jnp.zeros(1000))
    checkpoint = Checkpoint(v=v, array=array)
    path = checkpoint.write(tmp_path / "c", wait=False)
    array[:] = 1
    v.assign(jnp.ones(1000))
    checkpoint.wait()
    reader = CheckpointReader(path)
    assert reader.read("array").sum() == 0
    assert reader.read("v").sum() == 0


def test_a_reader_lists_its_names_for_a_wrong_one(tmp_path):
    reader = CheckpointReader(Checkpoint(**{f"n{k:02}": k for k in range(21)}).write(tmp_path / "c"))
    with pytest.raises(ArgumentError, match="has no name 'w'; it has n00, .*, n19, [.][.][.]") as raised:
        reader.read("w")
    assert raised.value.rule == "the name must be one of `reader.names`"


def test_a_root_object(tmp_path):
    model, other = Model(), Model(0.0)
    path = Checkpoint(model, step=3).write(tmp_path / "c")
    assert names_of(path) == {"kernel", "layers/0", "step"}
    Checkpoint(other, step=0).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.kernel.numpy(), model.kernel.numpy())


@pytest.mark.parametrize("part", [None, "text", int, len])
def test_part_without_state(part):
    with pytest.raises(ArgumentError, match="each keyword argument must hold state"):
        Checkpoint(part=part)


def test_dataset_in_place_of_its_iterator():
    with pytest.raises(ArgumentError, match=r"dataset_iterator=iter\(dataset\)"):
        Checkpoint(dataset=mr.data.Dataset.range(4))


def test_part_with_the_name_of_a_method():
    with pytest.raises(ArgumentError, match="'save' is the name of a method"):
        Checkpoint(save=mr.Variable(1.0))


@pytest.mark.parametrize("name", ["_net", "_parts", "__"])
def test_part_with_a_private_name(name):
    with pytest.raises(ArgumentError, match=f"the keyword argument '{name}' begins with an underscore"):
        Checkpoint(**{name: mr.Variable(1.0)})


def test_a_component_is_no_variable(tmp_path):
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        component = mr.Variable(1.0).values[0]
    for save in (lambda one: one.write(tmp_path / "c"), begin_snapshot):
        with pytest.raises(ArgumentError, match="one replica's copy of the variable"):
            save(Checkpoint(holder={"first": component}))
    path = Checkpoint(holder={"first": mr.Variable(1.0)}).write(tmp_path / "c")
    with pytest.raises(ArgumentError, match="one replica's copy of the variable"):
        Checkpoint(holder={"first": component}).restore(path)


class Phase(enum.IntEnum):
    WARM_UP = 1
    TRAIN = 2


def test_a_number_of_an_enum_is_restored_as_its_member(tmp_path):
    checkpoint = Checkpoint(phase=Phase.TRAIN)
    path = checkpoint.write(tmp_path / "c")
    manifest = begin_snapshot(checkpoint).finish()
    for restore in (lambda one: one.restore(path), lambda one: restore_snapshot(one, manifest)):
        other = Checkpoint(phase=Phase.WARM_UP)
        restore(other)
        assert other.phase is Phase.TRAIN
    with pytest.raises(CheckpointMismatchError, match="the number 7 in the checkpoint"):
        Checkpoint(phase=Phase.TRAIN).restore(Checkpoint(phase=7).write(tmp_path / "c"))


class Streams:
    """Two streams, each of which has read so many elements."""

    def __init__(self, **read):
        self.read = read

    def get_state(self):
        return dict(self.read)

    def set_state(self, state):
        self.read = dict(zip(self.read, state.values(), strict=True))


def test_the_keys_of_a_position_keep_their_order(tmp_path):
    path = Checkpoint(v=mr.Variable(1.0), streams=Streams(train=10, eval=20)).write(tmp_path / "c")
    streams = Streams(train=0, eval=0)
    Checkpoint(v=mr.Variable(0.0), streams=streams).restore(path).assert_consumed()
    assert streams.read == {"train": 10, "eval": 20}


def test_keys_with_the_same_name(tmp_path):
    with pytest.raises(ArgumentError, match="two pieces of state have the name 'd/1'"):
        Checkpoint(d={1: mr.Variable(1.0), "1": mr.Variable(2.0)}).write(tmp_path / "c")


def test_state_that_cannot_be_written(tmp_path):
    class Iterator:
        def get_state(self):
            return {"at": object()}

        def set_state(self, state):
            """Ignores the position."""

    with pytest.raises(ArgumentTypeError, match="the state of Iterator contains a object"):
        Checkpoint(iterator=Iterator()).write(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_not_inside_a_step(tmp_path):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(1.0)
    checkpoint = Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "c")
    with pytest.raises(ContextError, match="inside a replica function or a compiled function"):
        strategy.run(lambda: checkpoint.write(tmp_path / "d"))
    with pytest.raises(ContextError, match=r"Checkpoint\.restore"):
        mr.function(lambda: checkpoint.restore(path))()
    assert v.numpy() == 1.0


def test_in_a_scope_and_under_a_tape(tmp_path):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(2.0)
    other = mr.MirroredStrategy(jax.devices()[:1])
    with other.scope(), mr.GradientTape() as tape:
        path = Checkpoint(v=v).save(tmp_path / "c")
        v_before = v.numpy()
        Checkpoint(v=v).restore(path)
    assert tape.gradient(jnp.zeros(()), v) is None
    assert v.numpy() == v_before == 2.0


def test_a_lost_variable_cannot_be_saved_and_is_restored(tmp_path):
    v = mr.Variable(2.0, name="v")
    path = Checkpoint(v=v).save(tmp_path / "c")
    v.lose("the step failed")
    with pytest.raises(LostStateError, match="restore a checkpoint"):
        Checkpoint(v=v).save(tmp_path / "d")
    Checkpoint(v=v).restore(path).assert_consumed()
    assert v.numpy() == 2.0


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("replicas", [0, 2])
def test_random_keys_on_variables(tmp_path, implementation, replicas):
    def make(seed):
        scope = mr.MirroredStrategy(jax.devices()[:replicas]).scope() if replicas else contextlib.nullcontext()
        with scope:
            key = jax.random.key(seed, impl=implementation)
            return mr.Variable(key), mr.Variable(jax.random.split(key, 3), synchronization=ON_READ)

    (key, keys), (other_key, other_keys) = make(0), make(1)
    if replicas:
        keys.values[1].assign(jax.random.split(jax.random.key(7, impl=implementation), 3))
    path = Checkpoint(key=key, keys=keys).write(tmp_path / "c")
    Checkpoint(key=other_key, keys=other_keys).restore(path).assert_consumed()
    assert other_key.dtype == key.dtype
    for one, other in zip(
        key.values if replicas else [key], other_key.values if replicas else [other_key], strict=True
    ):
        np.testing.assert_array_equal(jax.random.key_data(one.read_value()), jax.random.key_data(other.read_value()))
    for one, other in zip(
        keys.values if replicas else [keys], other_keys.values if replicas else [other_keys], strict=True
    ):
        np.testing.assert_array_equal(jax.random.key_data(one.read_value()), jax.random.key_data(other.read_value()))
    reader = CheckpointReader(path)
    np.testing.assert_array_equal(jax.random.key_data(reader.read("key")), jax.random.key_data(key.read_value()))
    with pytest.raises(CheckpointMismatchError, match=f"key  a {implementation} key"):
        Checkpoint(key=mr.Variable(np.zeros((), np.uint32))).restore(path)


def test_restored_arrays_are_committed_only_if_those_before_were(tmp_path):
    def make():
        there = jax.device_put(jnp.zeros(2), jax.devices()[1])
        return {"free": jnp.zeros(2), "key": jax.random.key(0), "there": there}

    path = Checkpoint(state=make()).write(tmp_path / "c")
    checkpoint = Checkpoint(state=make())
    checkpoint.restore(path).assert_consumed()
    for name, before in make().items():
        assert checkpoint.state[name].committed is before.committed, name
        assert checkpoint.state[name].devices() == before.devices()


def test_arrays_in_a_position_keep_their_shapes(tmp_path):
    class Reader:
        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = state

    saved = {
        name: np.full(shape, 5, np.int32) for name, shape in (("a", (0, 3)), ("b", ()), ("c", (2, 0)), ("d", (2, 1)))
    }
    reader = Reader()
    reader.state = (saved, np.int32(7))
    path = Checkpoint(reader=reader).write(tmp_path / "c")
    reader.state = None
    Checkpoint(reader=reader).restore(path).assert_consumed()
    restored, number = reader.state
    assert {name: (array.tolist(), array.shape) for name, array in restored.items()} == {
        name: (array.tolist(), array.shape) for name, array in saved.items()
    }
    assert all(type(array) is np.ndarray and array.dtype == np.int32 for array in restored.values())
    assert (type(number), number) == (np.int32, 7)


@pytest.mark.parametrize("shape", [None, [None], [None, 2]])
@pytest.mark.parametrize("replicas", [0, 2])
def test_variables_that_can_change_their_shape(tmp_path, shape, replicas):
    def make(size):
        value = np.arange(2.0 * size, dtype=np.float32).reshape((size, 2) if shape == [None, 2] else -1)
        strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
        with strategy.scope() if strategy else contextlib.nullcontext():
            return mr.Variable(value, shape=TensorShape(shape), name="v")

    source, fixed = make(1), mr.Variable(make(4).numpy())
    source.assign(fixed)
    for path in (Checkpoint(v=source).write(tmp_path / "a"), Checkpoint(v=fixed).write(tmp_path / "b")):
        target = make(3)
        Checkpoint(v=target).restore(path).assert_consumed()
        np.testing.assert_array_equal(target.numpy(), fixed.numpy())


def test_a_variable_of_unknown_rank_goes_back_to_a_fixed_one_and_keeps_its_dtype(tmp_path):
    source = mr.Variable([1.0, 2.0], shape=TensorShape(None))
    path = Checkpoint(v=source).write(tmp_path / "c")
    target = mr.Variable([0.0, 0.0])
    Checkpoint(v=target).restore(path).assert_consumed()
    np.testing.assert_array_equal(target.numpy(), [1.0, 2.0])
    with pytest.raises(CheckpointMismatchError, match="float32"):
        Checkpoint(v=mr.Variable([1], shape=TensorShape(None))).restore(path)


@pytest.mark.parametrize("is_in_list", [True, False])
def test_a_checkpoint_in_a_checkpoint(is_in_list, tmp_path):
    """Its numbers were left out if it held a variable, and its root always, silently."""

    def made(value):
        model = Model(value)
        model.width = int(value)
        inner = Checkpoint(model, v=mr.Variable(value), n=int(value), log={"loss": [value]}, arrays=[np.full(2, value)])
        return model, inner, Checkpoint(inner=[inner] if is_in_list else inner, k=1)

    _, _, source = made(1.0)
    model, inner, target = made(5.0)
    path = source.write(tmp_path / "c")
    target.restore(path).assert_consumed()
    assert (float(inner.v.numpy()), inner.n, inner.log) == (1.0, 1, {"loss": [1.0]})
    np.testing.assert_array_equal(inner.arrays[0], [1.0, 1.0])
    np.testing.assert_array_equal(model.kernel.numpy(), Model(1.0).kernel.numpy())
    assert model.width == 5, "configuration"
    assert not any("width" in name for name in names_of(path))


def test_checkpoints_of_earlier_versions_lack_numbers_and_the_root_of_a_checkpoint_in_a_checkpoint(tmp_path):
    v = mr.Variable(0.0)
    save_as_by_earlier_version(Checkpoint(inner={"v": mr.Variable(1.0)}, k=1), tmp_path)
    manager = CheckpointManager(Checkpoint(inner=Checkpoint(Model(), v=v, n=3, log=[1.0]), k=0), tmp_path)
    assert manager.restore_latest() == 1
    assert float(v.numpy()) == 1.0
