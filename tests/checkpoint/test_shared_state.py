"""State that a program shares at its start and the checkpoint has separately, and the reverse."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct
from flax.core import FrozenDict

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.elastic.snapshots import packed, unpacked
from mirrored.errors import CheckpointMismatchError


@dataclasses.dataclass
class Changeable:
    w: Any


@dataclasses.dataclass
class OwnRule:
    w: Any

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


@struct.dataclass
class Fixed:
    w: Any


class Attributes(dict):
    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class Own(collections.abc.MutableMapping):
    def __init__(self, **items):
        self._items = items

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


KINDS = {
    "dict": lambda w: {"w": w},
    "nested": lambda w: {"layer": {"w": w}, "log": [w, ({"x": w},)]},
    "list": lambda w: [w],
    "changeable": Changeable,
    "own_rule": OwnRule,
    "fixed_dict": lambda w: Fixed({"w": w}),
    "frozen_dict": lambda w: FrozenDict(layer={"w": w}),
    "attributes": lambda w: Attributes(w=w),
    "own_mapping": lambda w: Own(w=w),
    "user_dict": lambda w: collections.UserDict(w=w),
    "deque": lambda w: collections.deque([w]),
    "namespace": lambda w: types.SimpleNamespace(w=w),
    "nnx_state": lambda w: nnx.State({"layer": {"w": nnx.Param(w)}}),
}
ARRAYS = {"jax": lambda value: jnp.full(2, value), "numpy": lambda value: np.full(2, value)}


def parts(x, y):
    return Checkpoint(a=x, b=y), lambda checkpoint: (checkpoint.a, checkpoint.b)


def train_state(x, y):
    return Checkpoint(state=Fixed((x, [y]))), lambda checkpoint: (checkpoint.state.w[0], checkpoint.state.w[1][0])


def attributes(x, y):
    return Checkpoint(o=types.SimpleNamespace(a=x, b=y)), lambda checkpoint: (checkpoint.o.a, checkpoint.o.b)


def by_manager(saved, checkpoint, folder):
    CheckpointManager(saved, folder).save(1)
    assert CheckpointManager(checkpoint, folder).restore_latest() == 1


def by_path(saved, checkpoint, folder):
    checkpoint.restore(saved.save(folder / "x")).assert_consumed()


def by_snapshot(saved, checkpoint, folder):
    description, arrays = packed(begin_snapshot(saved).finish())
    restore_snapshot(checkpoint, unpacked(description, np.concatenate([*arrays, np.zeros(0, np.uint8)])))


def values(value):
    """Returns all numbers in an object's arrays."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return value.tolist()
    if isinstance(value, collections.abc.Mapping):
        return {key: values(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [values(one) for one in value]
    return values(value.get_value() if isinstance(value, nnx.Variable) else value.w)


@pytest.mark.parametrize("restore", [by_manager, by_path])
def test_container_of_a_checkpoint_continues_as_it_was_saved(restore, tmp_path):
    check_continues("nested", "numpy", restore, train_state, tmp_path)


@pytest.mark.first(20)
@pytest.mark.parametrize(("array", "around"), [*itertools.product(ARRAYS, [parts, train_state, attributes])])
@pytest.mark.parametrize("kind", KINDS)
def test_container_of_a_snapshot_continues_as_it_was_saved(kind, array, around, tmp_path):
    check_continues(kind, array, by_snapshot, around, tmp_path)


def check_continues(kind, array, restore, around, tmp_path):
    make = {number: (lambda number=number: KINDS[kind](ARRAYS[array](float(number)))) for number in range(3)}
    shared = make[1]()
    for case, saved in {"separate": (make[1](), make[2]()), "shared": (shared, shared)}.items():
        start = make[0]()
        for at_start in ((start, start), (make[0](), make[0]())):
            before, get = around(*saved)
            after, _ = around(*at_start)
            folder = tmp_path / case / str(at_start[0] is at_start[1])
            restore(before, after, folder)
            assert values(get(after)[0]) == values(get(before)[0])
            assert values(get(after)[1]) == values(get(before)[1])
            if at_start[0] is at_start[1] and around is attributes and kind not in ("own_rule", "fixed_dict"):
                assert (get(after)[0] is get(after)[1]) == (case == "shared")


def leaf(value):
    return {"w": jnp.full(2, float(value))}


@pytest.mark.parametrize("groups", ["abb", "aab", "abc"])
def test_three_places_are_shared_as_they_were_saved(groups, tmp_path):
    made = {name: leaf(number) for number, name in enumerate("abc", 1)}
    path = Checkpoint(**dict(zip("xyz", (made[one] for one in groups), strict=True))).save(tmp_path / "x")
    start = leaf(0)
    checkpoint = Checkpoint(x=start, y=start, z=start)
    checkpoint.restore(path).assert_consumed()
    restored = checkpoint.x, checkpoint.y, checkpoint.z
    assert [values(one) for one in restored] == [values(made[one]) for one in groups]
    assert len({id(one) for one in restored}) == len(set(groups))


def test_containers_in_themselves_are_separated(tmp_path):
    def ring(value):
        made = leaf(value)
        made["self"] = made
        return made

    path = Checkpoint(a=ring(1), b=ring(2)).save(tmp_path / "x")
    start = ring(0)
    checkpoint = Checkpoint(a=start, b=start)
    checkpoint.restore(path).assert_consumed()
    assert [checkpoint.a["w"][0], checkpoint.b["w"][0]] == [1, 2]
    assert checkpoint.a["self"] is checkpoint.a
    assert checkpoint.b["self"] is checkpoint.b


@pytest.mark.parametrize(("a", "b"), [([1.0, 2.0], [3.0]), ([1.0], []), ([], [1.0])])
def test_lists_of_numbers_grow_separately(a, b, tmp_path):
    path = Checkpoint(a=a, b=b).save(tmp_path / "x")
    start = []
    checkpoint = Checkpoint(a=start, b=start)
    checkpoint.restore(path)
    assert (checkpoint.a, checkpoint.b) == (a, b)


@pytest.mark.parametrize(("groups", "is_equal"), [("abb", False), ("aab", True), ("abc", True), ("aaa", False)])
def test_numpy_arrays_share_memory_as_they_were_saved(groups, is_equal, tmp_path):
    made = {name: np.full(3, 1.0 if is_equal else float(number)) for number, name in enumerate("abc", 1)}
    path = Checkpoint(x=made[groups[0]], y=(made[groups[1]],), z=made[groups[2]]).save(tmp_path / "x")
    start = np.zeros(3)
    checkpoint = Checkpoint(x=start, y=(start,), z=start)
    checkpoint.restore(path).assert_consumed()
    restored = checkpoint.x, checkpoint.y[0], checkpoint.z
    assert [values(one) for one in restored] == [values(made[one]) for one in groups]
    assert len({id(one) for one in restored}) == len(set(groups))


@pytest.mark.parametrize("is_separate", [False, True])
def test_views_keep_their_memory_unless_they_were_saved_without(is_separate, tmp_path):
    def program():
        w = np.zeros(6)
        return Checkpoint(w=w, head=w[:2], even=w[::2])

    saved, checkpoint = program(), program()
    saved.w += np.arange(6)
    if is_separate:
        saved.head, saved.even = saved.head + 1, saved.even + 2
    checkpoint.restore(saved.save(tmp_path / "x")).assert_consumed()
    for name in ("w", "head", "even"):
        assert values(getattr(checkpoint, name)) == values(getattr(saved, name))
    assert np.shares_memory(checkpoint.w, checkpoint.head) is not is_separate


def test_numpy_arrays_of_earlier_checkpoints_are_separated_by_their_values(tmp_path, monkeypatch):
    monkeypatch.setattr("mirrored.checkpoint.overlaps._overlapping", lambda leaves: [])
    manifest = Checkpoint(a=np.ones(2), b=np.full(2, 2.0), c=np.ones(2)).snapshot()
    monkeypatch.undo()
    start = np.zeros(2)
    checkpoint = Checkpoint(a=start, b=start, c=start)
    restore_snapshot(checkpoint, dataclasses.replace(manifest, overlaps=None))
    assert values([checkpoint.a, checkpoint.b, checkpoint.c]) == [[1, 1], [2, 2], [1, 1]]


def optimizer(value):
    made = mr.optimizers.SGD(0.1, momentum=0.5)
    made.build([mr.Variable(float(value))])
    return made


OBJECTS = {
    "variable": lambda value: mr.Variable([float(value)]),
    "dict_of_variable": lambda value: {"v": mr.Variable([float(value)]), "n": value},
    "object": lambda value: type("Stats", (), {"__init__": lambda self: vars(self).update(w=np.full(1, value))})(),
    "optimizer": optimizer,
    "numpy_generator": np.random.default_rng,
    "python_generator": random.Random,
    "iterator": lambda value: iter(mr.data.Dataset.range(value, 5).skip(value)),
}


@pytest.mark.parametrize("restore", [by_path, by_snapshot])
@pytest.mark.parametrize("kind", OBJECTS)
def test_one_object_with_two_saved_values_is_refused(kind, restore, tmp_path):
    saved = Checkpoint(a=OBJECTS[kind](1), b=OBJECTS[kind](2))
    if kind == "iterator":
        next(saved.a)
    start = OBJECTS[kind](0)
    with pytest.raises(CheckpointMismatchError, match=r"b  is the same object as a"):
        restore(saved, Checkpoint(a=start, b=start), tmp_path)


def test_a_partial_restore_warns_of_one_object_with_two_saved_values(tmp_path, caplog):
    path = Checkpoint(a=mr.Variable(1.0), b=mr.Variable(2.0)).save(tmp_path / "x")
    start = mr.Variable(0.0)
    checkpoint = Checkpoint(a=start, b=start)
    checkpoint.restore(path).expect_partial()
    assert start.numpy() == 1
    assert "separate values for b and a" in caplog.text
    # The value that is not restored is in no later checkpoint.
    checkpoint.restore(checkpoint.save(tmp_path / "y")).assert_consumed()


def test_a_failed_restore_leaves_the_program_as_it_was(tmp_path):
    shared, array = leaf(0), np.zeros(2)
    path = Checkpoint(s=(leaf(1), {"x": leaf(2)}), h=np.ones(2), i=array, v=mr.Variable([1.0, 2.0])).save(
        tmp_path / "x"
    )
    checkpoint = Checkpoint(s=(shared, {"x": shared}), h=array, i=array, v=mr.Variable(0.0))
    before = checkpoint.s
    with pytest.raises(CheckpointMismatchError, match="shape"):
        checkpoint.restore(path)
    assert checkpoint.s is before
    assert before[1]["x"] is shared
    assert checkpoint.h is checkpoint.i


def test_containers_that_are_created_after_the_restore_are_separated(tmp_path):
    path = Checkpoint(params=leaf(1), ema=leaf(2), step=3).save(tmp_path / "x")
    checkpoint = Checkpoint(step=0)
    status = checkpoint.restore(path)
    start = leaf(0)
    checkpoint.params = start
    checkpoint.ema = start
    status.assert_consumed()
    assert [checkpoint.params["w"][0], checkpoint.ema["w"][0]] == [1, 2]
    checkpoint.ema = checkpoint.params  # all is restored: the program shares it
    assert checkpoint.ema is checkpoint.params


def test_the_program_hears_of_a_copy(tmp_path, caplog):
    path = Checkpoint(params=leaf(1), ema=leaf(2)).save(tmp_path / "x")
    start = leaf(0)
    checkpoint = Checkpoint(params=start, ema=start)
    checkpoint.restore(path).assert_consumed()
    assert "ema = checkpoint.ema" in caplog.text
    assert checkpoint.params is start


def test_what_the_program_shares_later_stays_shared(tmp_path, caplog):
    path = Checkpoint(state={"params": leaf(1), "best": leaf(2)}, late=types.SimpleNamespace(x=mr.Variable(5.0))).save(
        tmp_path / "x"
    )
    state, late = {"params": leaf(0), "best": None}, types.SimpleNamespace()
    Checkpoint(state=state, late=late).restore(path).expect_partial()
    caplog.clear()
    state["params"] = leaf(7)
    state["best"] = state["params"]
    late.x = mr.Variable(0.0)
    assert float(late.x) == 5
    assert state["best"] is state["params"]
    assert state["best"]["w"][0] == 7
    assert not caplog.records


class _Counts(collections.Counter):
    """A class whose copies do not have its items: `copy` passes the items as the name."""

    def __init__(self, name: object, *items: object) -> None:
        super().__init__(*items)
        self.name = name


class _Zeros(collections.defaultdict):
    """A class of which `copy` makes no copies."""

    def __init__(self) -> None:
        super().__init__(float)


@pytest.mark.parametrize("make", [_Zeros, lambda: _Counts("n")], ids=["raises", "differs"])
def test_containers_that_cannot_be_copied_are_reported(make, tmp_path, caplog):
    def filled(value: int) -> Any:
        made = make()
        made["a"] = value
        return made

    path = Checkpoint(s=types.SimpleNamespace(a=filled(1), b=filled(2))).save(tmp_path / "x")
    one = filled(0)
    shared = types.SimpleNamespace(a=one, b=one)
    with pytest.raises(CheckpointMismatchError, match="s/b  is the same object as s/a"):
        Checkpoint(s=shared).restore(path).assert_consumed()
    assert shared.a is shared.b is one
    assert "s/b and s/a, which are one object" in caplog.text
