from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.errors import ArgumentError
from mirrored.optimizers.clipping import Clipping

GRADIENTS = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([0.0, 12.0])}


def test_nothing_leaves_gradients_as_they_are():
    assert Clipping().apply(GRADIENTS) is GRADIENTS


def test_clipvalue_bounds_each_element():
    clipped = Clipping(clipvalue=3.5).apply(GRADIENTS)
    np.testing.assert_array_equal(clipped["a"], [3.0, 3.5])
    np.testing.assert_array_equal(clipped["b"], [0.0, 3.5])


def test_clipnorm_bounds_each_variable():
    clipped = Clipping(clipnorm=6.0).apply(GRADIENTS)
    np.testing.assert_array_equal(clipped["a"], [3.0, 4.0])
    np.testing.assert_allclose(clipped["b"], [0.0, 6.0], rtol=1e-6)


def test_global_clipnorm_bounds_all_together():
    clipped = Clipping(global_clipnorm=6.5).apply(GRADIENTS)
    np.testing.assert_allclose(clipped["a"], [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [0.0, 6.0], rtol=1e-6)


def test_a_zero_gradient_stays_zero():
    zeros = {"a": jnp.zeros(3)}
    for clipping in (Clipping(clipnorm=1.0), Clipping(global_clipnorm=1.0), Clipping(clipvalue=1.0)):
        np.testing.assert_array_equal(clipping.apply(zeros)["a"], np.zeros(3))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_a_bound_is_a_finite_number_above_0(name, bound):
    with pytest.raises(ArgumentError, match=f"(?s){name}=.*finite number above 0"):
        Clipping(**{name: bound})


def test_only_one_way_of_clipping():
    with pytest.raises(ArgumentError, match="clipnorm=1.0 and clipvalue=2.0"):
        Clipping(clipnorm=1.0, clipvalue=2.0)
