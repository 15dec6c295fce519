"""Which objects a tape keeps alive, and for how long."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

from mirrored._jax.boxes import Box
from mirrored.tape import GradientTape
from mirrored.tape.record import Record


def live(kind: type) -> int:
    gc.collect()
    return sum(isinstance(one, kind) for one in gc.get_objects())


class NewArrays:
    """Counts the arrays that exist now and did not exist before: those of earlier tests may be freed in between."""

    def __init__(self) -> None:
        self._before = jax.live_arrays()  # holds them, so that no new array gets the identity of an old one

    def count(self) -> int:
        gc.collect()
        old = set(map(id, self._before))
        return sum(id(array) not in old for array in jax.live_arrays())


def recorded(persistent: bool):
    x = jnp.ones(1000)
    with GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = x
        for _ in range(10):
            y = jnp.sin(y) * y
        z = jnp.sum(y)
    return tape, x, z


@pytest.mark.long
def test_a_plain_tape_frees_its_records_at_the_gradient():
    new, records = NewArrays(), live(Record)
    tape, x, z = recorded(persistent=False)
    assert new.count() > 20
    gradient = tape.gradient(z, x)
    assert new.count() == 3  # x, z, gradient
    assert live(Record) == records  # other tests of this process may hold some
    assert gradient.shape == x.shape


@pytest.mark.long
def test_a_persistent_tape_frees_its_records_when_it_is_dropped():
    new, records = NewArrays(), live(Record)
    tape, x, z = recorded(persistent=True)
    tape.gradient(z, x)
    tape.gradient(z, x)
    assert new.count() > 20
    del tape
    assert new.count() == 2
    assert live(Record) == records  # other tests of this process may hold some


def test_a_box_does_not_keep_its_tape_alive():
    tape, x, z = recorded(persistent=True)
    gone = weakref.ref(tape)
    del tape
    gc.collect()
    assert gone() is None
    assert type(z) is Box
    assert float(z + x[0]) != 0.0


def test_a_plain_tape_that_is_never_asked_is_freed_too():
    new = NewArrays()
    tape, x, z = recorded(persistent=False)
    del tape, x, z
    assert new.count() == 0


@pytest.mark.timeout(300)
@pytest.mark.long
def test_ten_thousand_tapes_do_not_grow():
    x = jnp.array(1.5)

    def step(k: int) -> None:
        with GradientTape(persistent=k % 2 == 0) as tape:
            tape.watch(x)
            y = x * x
        if k % 3 == 0:
            tape.gradient(y, x)

    for k in range(100):
        step(k)
    gc.collect()
    objects, arrays = len(gc.get_objects()), len(jax.live_arrays())
    for k in range(10_000):
        step(k)
    gc.collect()
    assert len(gc.get_objects()) - objects < 300
    assert len(jax.live_arrays()) - arrays <= 4


@pytest.mark.long
def test_functions_made_anew_for_every_step_are_forgotten():
    from mirrored.tape import catalogue

    x = jnp.array(1.5)
    for k in range(3):
        with GradientTape() as tape:
            tape.watch(x)
            y = jax.jit(lambda a, k=k: a * (k + 1.0))(x)
        assert float(tape.gradient(y, x)) == k + 1.0
    small = catalogue.Catalogue(3)
    for k in range(10):
        small.get(k, lambda k=k: k)
    assert len(small) == 3
    assert small.get(9, lambda: -1) == 9
    assert small.get(0, lambda: -1) == -1
