"""Restores optimizers with several step counters: each variable continues with its own counter, or an error is raised.

Variables that are first updated in separate calls have separate counters. Adam's bias correction depends on them, so a
counter that is dropped or exchanged changes all later weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.errors import CheckpointMismatchError


class Program:
    def __init__(self) -> None:
        self.a = mr.Variable(jnp.array([1.0, 2.0]), name="a")
        self.b = mr.Variable(jnp.array([3.0]), name="b")
        self.c = mr.Variable(jnp.array([4.0]), name="c")
        self.optimizer = mr.optimizers.Adam(0.1)

    def checkpoint(self, **more: Any) -> Checkpoint:
        return Checkpoint(a=self.a, b=self.b, c=self.c, optimizer=self.optimizer, **more)

    def update(self, *names: str, steps: int = 1) -> None:
        for step in range(steps):
            pairs = [(jnp.cos(getattr(self, one).read_value() + step), getattr(self, one)) for one in names]
            self.optimizer.apply_gradients(pairs)

    def build(self, *names: str) -> None:
        self.optimizer.build([getattr(self, one) for one in names])

    def weights(self) -> list[list[float]]:
        return [one.numpy().tolist() for one in (self.a, self.b, self.c)]


def separately() -> Program:
    """Returns a program with two counters: 3 for `a`, 5 for `b`."""
    program = Program()
    program.update("a", steps=3)
    program.update("b", steps=5)
    return program


def together() -> Program:
    program = Program()
    program.update("a", "b", steps=4)
    return program


def continued(program: Program, how: Callable[[], Program] = separately) -> list[float]:
    if how is together:
        program.update("a", "b", steps=4)
    else:
        program.update("b", steps=2)
        program.update("a", steps=2)
    return sum(program.weights(), [])


BUILT: dict[str, Callable[[Program], None]] = {
    "not built": lambda program: None,
    "in the same order": lambda program: (program.build("a"), program.build("b"))[0],
    "in another order": lambda program: (program.build("b"), program.build("a"))[0],
    "only the second": lambda program: program.build("b"),
    "used in another order": lambda program: (program.update("b"), program.update("a"))[0],
    "after another variable": lambda program: (program.build("c"), program.build("b"), program.build("a"))[0],
}


# Each variable has a counter of its own after these.
APART = ("in the same order", "in another order", "used in another order", "after another variable")
CASES = [(separately, one) for one in BUILT] + [(together, "not built")]


@pytest.mark.parametrize(("trained", "built"), CASES)
@pytest.mark.first(2)
def test_each_variable_continues_with_its_own_counter(built, trained, tmp_path):
    original = trained()
    path = original.checkpoint().write(tmp_path / "c")
    restored = Program()
    BUILT[built](restored)
    restored.checkpoint().restore(path).expect_partial()
    assert restored.weights() == original.weights()
    np.testing.assert_array_equal(continued(restored, trained), continued(original, trained))


def test_the_optimizer_may_have_another_path(tmp_path):
    original = separately()
    path = Checkpoint(a=original.a, b=original.b, train={"optimizer": original.optimizer}).write(tmp_path / "c")
    restored = Program()
    BUILT["in another order"](restored)
    Checkpoint(a=restored.a, b=restored.b, train={"optimizer": restored.optimizer}).restore(path).expect_partial()
    np.testing.assert_array_equal(continued(restored), continued(original))


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_a_checkpoint_with_more_counters_is_refused(names, tmp_path):
    path = separately().checkpoint().write(tmp_path / "c")
    program = Program()
    program.build(*names)
    before = program.weights()
    remedy = r"optimizer\.build\(\[a\]\), optimizer\.build\(\[b\]\)"
    with pytest.raises(CheckpointMismatchError, match=rf"(?s)one step counter for a, b.*it has 2.*{remedy}"):
        program.checkpoint().restore(path)
    assert program.weights() == before
    assert int(program.optimizer.iterations) == 0


@pytest.mark.parametrize("built", APART)
@pytest.mark.first(1)
def test_a_checkpoint_with_fewer_counters_is_refused(built, tmp_path):
    """The saved counter was copied to both groups, and the copies advanced separately."""
    path = together().checkpoint().write(tmp_path / "c")
    program = Program()
    BUILT[built](program)
    before, steps = program.weights(), int(program.optimizer.iterations)
    found = r"(?s)2 step counters for (a, b|b, a), because.*in \S+ it has one; nothing"
    remedy = r"restore the checkpoint before.*optimizer\.build\(\[(a, b|b, a)\]\)"
    with pytest.raises(CheckpointMismatchError, match=f"{found}.*{remedy}"):
        program.checkpoint().restore(path)
    assert program.weights() == before
    assert int(program.optimizer.iterations) == steps


def test_a_variable_that_is_updated_later_than_its_group_is_refused(tmp_path):
    original, program = together(), Program()
    path = original.checkpoint().write(tmp_path / "c")
    BUILT["only the second"](program)
    program.checkpoint().restore(path).expect_partial()
    for one in (original, program):
        one.update("b")  # exact as long as `a` is not updated
    assert program.weights() == original.weights()
    with pytest.raises(CheckpointMismatchError, match="2 step counters for b, a"):
        program.update("a", "b")
    assert program.weights() == original.weights()


def test_any_shared_state_of_a_transformation_is_refused(tmp_path):
    """The random key of gradient noise, and the position in a schedule, are shared like the step counter of Adam."""

    def program(*groups: tuple[str, ...]) -> Program:
        made = Program()
        schedule = optax.scale_by_schedule(optax.linear_schedule(1.0, 0.0, 10))
        made.optimizer = mr.optimizers.Optimizer(optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), schedule))
        for group in groups:
            made.update(*group)
        return made

    path = program(("a", "b")).checkpoint().write(tmp_path / "c")
    with pytest.raises(CheckpointMismatchError, match="2 step counters for a, b"):
        program(("a",), ("b",)).checkpoint().restore(path)


def test_a_variable_that_is_created_and_updated_later_than_its_group_is_refused(tmp_path):
    """Its deferred restore would set its own counter to the saved one, behind that of the rest of the group."""
    path = together().checkpoint().write(tmp_path / "c")
    program = Program()
    checkpoint = Checkpoint(a=program.a, optimizer=program.optimizer)
    del program.b
    checkpoint.restore(path).expect_partial()
    program.update("a")
    program.b = checkpoint.b = mr.Variable(jnp.array([3.0]), name="b")
    with pytest.raises(CheckpointMismatchError, match="2 step counters for a, b"):
        program.update("b")


def test_a_manager_refuses_it_too(tmp_path):
    original = separately()
    manager = CheckpointManager(original.checkpoint(), tmp_path)
    manager.save(1)
    manager.wait()
    program = Program()
    program.build("a", "b")
    with pytest.raises(CheckpointMismatchError, match="one step counter"):
        CheckpointManager(program.checkpoint(), tmp_path).restore_latest()
    assert int(program.optimizer.iterations) == 0


@pytest.mark.parametrize("is_joined", [True, False])
def test_groups_without_counters_are_restored(is_joined, tmp_path):
    def programs(*groups: tuple[str, ...]) -> Program:
        program = Program()
        program.optimizer = mr.optimizers.SGD(0.1, momentum=0.9)
        for group in groups:
            program.update(*group, steps=2)
        return program

    groups: tuple[tuple[str, ...], ...] = (("a",), ("b",))
    original, restored = (programs(*one) for one in ((groups, [("a", "b")]) if is_joined else ([("a", "b")], groups)))
    path = original.checkpoint().write(tmp_path / "c")
    restored.checkpoint().restore(path).assert_consumed()
    np.testing.assert_array_equal(continued(restored), continued(original))


@pytest.mark.first(1)
@pytest.mark.parametrize("is_nested", [False, True])
def test_slots_of_variables_whose_names_are_numbers_are_no_counters(is_nested, tmp_path):
    def program(*groups, optimizer):
        variables = [mr.Variable([1.0]), mr.Variable([2.0])]
        for group in groups:
            optimizer.apply_gradients([(jnp.full(1, 10.0 + index), variables[index]) for index in group])
        return [{"kernel": one} for one in variables] if is_nested else variables, variables, optimizer

    def momentum():
        return mr.optimizers.SGD(0.1, momentum=0.9)

    listed, saved, optimizer = program([0], [1], optimizer=momentum())
    path = Checkpoint(listed, optimizer=optimizer).write(tmp_path / "c")
    listed, restored, other = program([0, 1], optimizer=momentum())
    Checkpoint(listed, optimizer=other).restore(path).assert_consumed()
    assert [one.numpy().tolist() for one in restored] == [one.numpy().tolist() for one in saved]
    # The counters of Adam are still refused.
    listed, _, optimizer = program([0], [1], optimizer=mr.optimizers.Adam(0.1))
    path = Checkpoint(listed, optimizer=optimizer).write(tmp_path / "d")
    listed, _, other = program([0, 1], optimizer=mr.optimizers.Adam(0.1))
    with pytest.raises(CheckpointMismatchError, match="it has 2"):
        Checkpoint(listed, optimizer=other).restore(path)


@pytest.mark.long
def test_variables_whose_names_are_numbers_keep_their_slots(tmp_path):
    def program(order):
        variables, optimizer = [mr.Variable([1.0]), mr.Variable([1.0])], mr.optimizers.Adam(0.1)
        for index in order:
            for _ in range(index + 1):
                optimizer.apply_gradients([(jnp.full(1, 10.0 * (index + 1)), variables[index])])
        return variables, optimizer

    def state(variables, optimizer):
        slots = [float(optimizer.slots(one)["mu"].numpy()[0]) for one in variables]
        counts = {id(one): int(group.shared["count"]) for group in optimizer.made().groups for one in group.variables}
        return slots, [counts[id(one)] for one in variables]

    saved, restored = program([0, 1]), program([1, 0])
    expected = state(*saved)
    assert expected[1] == [1, 2]
    for one in restored[0]:
        for slot in restored[1].slots(one).values():
            slot.assign(slot * 0)
    path = Checkpoint(saved[0], optimizer=saved[1]).write(tmp_path / "c")
    Checkpoint(restored[0], optimizer=restored[1]).restore(path).assert_consumed()
    assert state(*restored) == expected


def _dict_of_variables(name: str | None) -> dict[str, mr.Variable]:
    keys = ["z", "a", "m", *(f"k{at}" for at in range(8))]
    return {key: mr.Variable(jnp.ones(at + 1), name=name and f"{name}{at % 2}") for at, key in enumerate(keys)}


@pytest.mark.parametrize("name", [None, "w"], ids=["generated names", "repeated names"])
@pytest.mark.parametrize("calls", [1, 2], ids=["one group", "two groups"])
def test_slots_have_the_order_and_names_of_an_undisturbed_program(name, calls, tmp_path):
    class Model:
        def __init__(self) -> None:
            self.weights = [_dict_of_variables(name) for _ in range(calls)]
            self.optimizer = mr.optimizers.Adam(0.1)
            self.checkpoint = Checkpoint(weights=self.weights, optimizer=self.optimizer)

        def update(self) -> None:
            for weights in self.weights:
                gradients = {key: jnp.full(one.shape, at + 1.0) for at, (key, one) in enumerate(weights.items())}
                self.optimizer.apply_gradients([(gradients, weights)])

        def apply_in_default_order(self) -> list[tuple[int, ...]]:
            order = [one for weights in self.weights for one in weights.values()]
            self.optimizer.apply([jnp.full(one.shape, 1.0) for one in order])
            return [tuple(one.shape) for one in order]

    undisturbed = Model()
    undisturbed.update()
    path = undisturbed.checkpoint.save(tmp_path / "one")
    restored = Model()
    restored.checkpoint.restore(path)
    again = Model()
    again.checkpoint.restore(restored.checkpoint.save(tmp_path / "two"))
    for model in (undisturbed, restored, again):
        model.update()
        model.apply_in_default_order()
    for model in (restored, again):
        slots = model.optimizer.variables
        assert [one.name for one in slots] == [one.name for one in undisturbed.optimizer.variables]
        for here, there in zip(slots, undisturbed.optimizer.variables, strict=True):
            assert here.numpy().tolist() == there.numpy().tolist()


def test_slots_of_variables_named_by_numbers_are_restored_in_any_order(tmp_path):
    def program() -> tuple[dict[str, mr.Variable], mr.optimizers.Adam, Checkpoint]:
        weights = {"1": mr.Variable(jnp.ones(1)), "0": mr.Variable(jnp.ones(2))}
        optimizer = mr.optimizers.Adam(0.1)
        return weights, optimizer, Checkpoint({**weights, "optimizer": optimizer})

    def update(weights, optimizer) -> None:
        optimizer.apply_gradients([({"1": jnp.ones(1), "0": jnp.full(2, 3.0)}, weights)])

    weights, optimizer, checkpoint = program()
    update(weights, optimizer)
    path = checkpoint.save(tmp_path / "one")
    others, other, restored = program()
    restored.restore(path)
    for _ in range(2):
        update(weights, optimizer)
        update(others, other)
    for key, weight in weights.items():
        assert others[key].numpy().tolist() == weight.numpy().tolist()
        for label, slot in optimizer.slots(weight).items():
            assert other.slots(others[key])[label].numpy().tolist() == slot.numpy().tolist()
