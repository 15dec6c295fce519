"""State in objects that have neither attributes nor items of their own: `functools.partial`, and sets."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from checkpoint.programs import Model
from mirrored.checkpoint import Checkpoint, CheckpointReader, graph
from mirrored.checkpoint.objects import Part
from mirrored.checkpoint.places import Root


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


def test_a_partial_can_be_a_part_or_the_root(tmp_path: Path) -> None:
    for before, after in itertools.permutations((holder(1.0), holder(7.0))):
        expected = values(before)
        path = Checkpoint(call=before.call).write(tmp_path / str(expected[0]))
        assert "call/args/0" in CheckpointReader(path).names
        Checkpoint(call=after.call).restore(path).assert_consumed()
        assert values(after) == expected
    path = Checkpoint(holder(2.0).call).write(tmp_path / "root")
    here = holder(7.0)
    Checkpoint(here.call).restore(path).assert_consumed()
    assert values(here) == [2.0, 3.0, 4.0]


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


@dataclasses.dataclass(eq=False, repr=False)
class Node:
    neighbours: set[Any] = dataclasses.field(default_factory=set)
    state: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FrozenNode:
    neighbours: set[Any] = dataclasses.field(default_factory=set)
    state: list[Any] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("kind", [Node, FrozenNode])
def test_objects_may_hold_each_other_in_sets(kind: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, v = [kind() for _ in range(300)], mr.Variable(3.0)
    for one, two in itertools.pairwise([*nodes, nodes[0]]):
        one.neighbours.add(two)
        two.neighbours.add(one)
    nodes[0].state.append(v)
    nodes[1].state.append(v)
    checkpoint = Checkpoint(v=v, node=nodes[0])
    path = checkpoint.write(tmp_path / "c")
    v.assign(0.0)
    checkpoint.restore(path)
    assert float(v.numpy()) == 3.0
    assert caplog.text == ""
    nodes[140].state.append(np.ones(2))
    with caplog.at_level(logging.WARNING, logger="mirrored.checkpoint"):
        checkpoint.write(tmp_path / "d")
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "Checkpoint.save leaves out the state in node/neighbours"
    ]


def test_items_of_sets_may_have_entries_of_one_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.state.append({1: mr.Variable(1.0), "1": mr.Variable(2.0)})
    Checkpoint(v=mr.Variable(0.0), nodes=[{node}]).write(tmp_path / "c")
    assert "leaves out the state in nodes/0" in caplog.text


def test_objects_in_many_sets_are_visited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node() for _ in range(30)]
    for one in nodes:
        one.neighbours.update(nodes)
    visited: list[object] = []
    parts_of = graph.parts_of
    monkeypatch.setattr(graph, "parts_of", lambda value, place: visited.append(value) or parts_of(value, place))
    graph.walk([Part("nodes", set(nodes), Root({}, "nodes")), Part("first", nodes[0], Root({}, "first"))])
    assert len([one for one in visited if isinstance(one, Node)]) == len(nodes)


@pytest.mark.parametrize("is_run", [False, True])
@pytest.mark.parametrize("is_module", [False, True])
def test_an_attribute_that_a_compiled_function_has_set_is_left_out_and_named(
    is_module: bool, is_run: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every later save raised JAX' error about a tracer, which names neither the attribute nor a remedy."""

    class Attention(mr.tf.Module if is_module else object):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w, self.cache = mr.Variable(jnp.ones(2)), {}

        def __call__(self, x: Any) -> Any:
            self.last_scores = self.cache["scores"] = x * self.w
            return jnp.sum(self.last_scores)

    strategy = mr.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model, other = Attention(), Attention()
    step = mr.function((lambda x: strategy.run(model, args=(x,))) if is_run else model)
    step(jnp.ones(2))
    checkpoint = Checkpoint(model=model)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        path = checkpoint.write(tmp_path / "c")
        checkpoint.write(tmp_path / "d")
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "Checkpoint.save leaves out model/last_scores",
        "Checkpoint.save leaves out model/cache/scores",
    ]
    other.w.assign(jnp.zeros(2))
    Checkpoint(model=other).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.w.numpy(), [1.0, 1.0])


@dataclasses.dataclass(eq=False, repr=False)
class Block(mr.tf.Module):
    """A dataclass that inherits a `__setattr__`."""

    w: Any
    others: Any = None
    child: Any = None

    def __post_init__(self) -> None:
        super().__init__()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Frozen:
    """A frozen dataclass with the same attributes."""

    w: Any
    others: Any = None
    child: Any = None


@pytest.mark.parametrize("kind", [Block, Frozen])
def test_dataclasses_that_refer_to_each_other_are_visited_once(kind: Any, tmp_path: Path) -> None:
    """A `Checkpoint` of them never returned: frozen objects are not shared, so their names had no end."""

    def cycle(value: float) -> Any:
        first = kind(mr.Variable(value))
        last = kind(np.full(2, value), others=(first, (first,)))
        object.__setattr__(first, "child", last)
        object.__setattr__(last, "child", last)
        return first

    source, target = cycle(1.0), cycle(5.0)
    path = Checkpoint(model=source).write(tmp_path / "c")
    assert set(CheckpointReader(path).names) == {"model/w", "model/child/w"}
    Checkpoint(model=target).restore(path).assert_consumed()
    assert float(target.w.numpy()) == 1.0
    np.testing.assert_array_equal(target.child.w, [1.0, 1.0])
