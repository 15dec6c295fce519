"""Names that a function assigns: a trace that only checks the loss scale leaves them as they were."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

STRATEGY = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
total_calls = 0


def uneven():
    (batch,) = STRATEGY.distribute_dataset([np.ones((3, 1), np.float32)])
    return batch


class Trainer:
    of_class = 0

    def __init__(self):
        self.calls, self.scale, self.mean, self.made = 0, 1.0, jnp.zeros(()), None

    @mr.function
    def step(self, batch):
        self.calls += 1
        self.of_class += 1
        self.scale *= 0.5
        if self.made is None:
            self.made = mr.Variable(1.0)
        sums = STRATEGY.run(lambda x: x.sum() * self.scale * self.made, args=(batch,))
        self.mean = self.mean + STRATEGY.reduce("SUM", sums, axis=None)
        return sums


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


def test_attributes():
    trainer = Trainer()
    total = float(STRATEGY.reduce("SUM", trainer.step(uneven()), axis=None))
    assert (trainer.calls, trainer.of_class, Trainer.of_class) == (1, 1, 0)
    assert (trainer.scale, total, float(trainer.mean)) == (0.5, 1.5, 1.5)


def test_slots_closure_variables_and_globals():
    calls, later, slotted = 0, [], Slotted()

    def counted():
        nonlocal calls
        calls += 1

    @mr.function
    def step(batch):
        global total_calls
        total_calls += 1
        slotted.calls += 1
        counted()
        later.append(1)
        return STRATEGY.run(lambda x: x.sum(), args=(batch,))

    before = total_calls
    step(uneven())
    assert (calls, total_calls - before, slotted.calls, later) == (1, 1, 1, [1])


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
def test_an_error_of_an_eager_call_restores_what_it_assigned_outside_of_runs(first):
    with STRATEGY.scope():
        count = mr.Variable(0, trainable=False)

    @mr.function
    def step(batch):
        count.assign_add(1)
        return STRATEGY.run(lambda x: x.reshape(2, -1).sum(), args=(batch,))

    if not first:
        (even,) = STRATEGY.distribute_dataset([np.ones((4, 1), np.float32)])
        step(even)
    before = int(count.numpy())
    for _ in range(2):
        with pytest.raises(TypeError):
            step(uneven())
        assert int(count.numpy()) == before


@pytest.mark.parametrize("rows", [4, 3], ids=["even", "uneven"])
def test_a_flag_stays_with_what_it_guards(rows):
    made = []

    class Model:
        built = False

        def build(self):
            self.w = mr.Variable(jnp.ones(()))
            made.append(self.w)
            self.built = True

    model = Model()
    model.built = False

    @mr.function
    def step(batch):
        if not model.built:
            model.build()
        STRATEGY.run(lambda x: x.sum() * model.w, args=(batch,))

    (batch,) = STRATEGY.distribute_dataset([np.ones((rows, 1), np.float32)])
    with STRATEGY.scope():
        step(batch)
    assert model.built
    assert len(made) == 1
