from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from mirrored.testing import count_work


@pytest.mark.long
def test_traces_compilations_and_arrays_are_counted():
    kept = []
    with count_work() as outer:
        with count_work() as counted:
            kept.append(jax.jit(lambda x: x * 3 + 1)(jnp.ones(7)))
        jax.jit(lambda x: x * 5)(kept[0]).block_until_ready()
    assert counted.traces >= 1
    assert counted.compilations >= 1
    assert counted.new_arrays == 1
    assert outer.traces > counted.traces
    assert outer.compilations > counted.compilations


def test_a_warm_function_does_no_work():
    double = jax.jit(lambda x: x * 2)
    x = double(jnp.ones(3))
    with count_work() as counted:
        double(x).block_until_ready()
    assert (counted.traces, counted.compilations, counted.new_arrays) == (0, 0, 0)
