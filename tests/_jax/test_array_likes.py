"""Probes of what `array_likes` relies on in JAX: classes that it accepts as operands, arguments and indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.array_likes import register_array_like, register_index
from mirrored._jax.arrays import as_array


class Counted:
    """An array-like object that counts how often it is read."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value
        self.reads = 0

    def read(self) -> jax.Array:
        self.reads += 1
        return self.value


class CountedToo(Counted):
    """A subclass of a registered class."""


register_array_like(Counted, read=Counted.read, shape_of=lambda one: jax.typeof(one.value))
USES = {
    "lax": lambda x: jax.lax.mul(x, x),
    "jit": lambda x: jax.jit(lambda a: a * a)(x),
    "jax.nn": lambda x: jax.nn.relu(x) ** 2,
    "grad of another": lambda x: jax.grad(lambda a: jnp.sum(a**2 * jax.lax.mul(x, 0.5)))(as_array(x.value)),
    "inside jit": lambda x: jax.jit(lambda a: jax.lax.mul(a, x))(x.value),
    "cond that returns it": lambda x: jax.lax.cond(True, lambda a: a, lambda a: a, x) ** 2,
    "switch that returns it": lambda x: jax.lax.switch(1, [lambda a: (a, 1.0), lambda a: (a, 2.0)], x)[0] ** 2,
}


@pytest.mark.parametrize("kind", [Counted, CountedToo])
@pytest.mark.parametrize("use", USES)
def test_registered_classes_are_operands_and_arguments(use: str, kind: type[Counted]) -> None:
    one = kind(jnp.arange(3.0))
    np.testing.assert_allclose(USES[use](one), jnp.arange(3.0) ** 2)
    assert one.reads > 0


def test_the_shape_is_known_without_a_read() -> None:
    one = Counted(jnp.arange(3.0))
    assert jax.typeof(one).shape == (3,)
    assert one.reads == 0


INDICES = {
    "alone": lambda table, i: table[i],
    "in a tuple": lambda table, i: table[i, 1],
    "behind a slice": lambda table, i: table[:, i],
    "beside None": lambda table, i: table[None, i],
    "twice": lambda table, i: table[i, i],
    "at set": lambda table, i: table.at[i].set(0.0),
    "at get": lambda table, i: table.at[i].get(),
    "traced": lambda table, i: jax.jit(lambda table: table[i] * 2)(table),
}


@pytest.mark.parametrize("index", [1, [0, 2], [True, False, True]], ids=["integer", "integers", "mask"])
@pytest.mark.parametrize("use", INDICES)
def test_registered_classes_are_indices(use: str, index: object) -> None:
    table, plain = jnp.arange(9.0).reshape(3, 3), jnp.asarray(index)
    np.testing.assert_array_equal(INDICES[use](table, Counted(plain)), INDICES[use](table, plain))


def test_other_objects_are_refused_as_by_jax() -> None:
    with pytest.raises(IndexError, match="only integers, slices"):
        jnp.arange(3)[object()]
    with pytest.raises(TypeError, match="not a valid JAX type"):
        jax.lax.cond(True, lambda x: x, lambda x: x, object())


def test_a_class_may_be_an_index_alone() -> None:
    class Second:
        """No array, but an index."""

    register_index(Second, lambda _: 1)
    assert jnp.arange(3)[Second()] == 1
    with pytest.raises(TypeError):
        jnp.sin(Second())
