"""Probes of making JAX trace a function again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from mirrored._jax import caches

USES = {
    "jit": lambda f: jax.make_jaxpr(jax.jit(f))(2.0),
    "jit in jit": lambda f: jax.jit(lambda x: jax.jit(f)(x))(2.0),
    "checkpoint": lambda f: jax.checkpoint(f)(2.0),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c), None), 2.0, None, length=2),
    "cond": lambda f: jax.lax.cond(True, f, f, 2.0),
    "while": lambda f: jax.lax.while_loop(lambda c: c < 9.0, f, 2.0),
    "fori": lambda f: jax.lax.fori_loop(0, 2, lambda i, c: f(c), 2.0),
}


@pytest.mark.parametrize("use", USES)
def test_a_forgotten_function_is_traced_again(use):
    traces, seen = [], []

    def function(x):
        traces.append(x)
        seen[:] = caches.functions_being_traced()
        return x * 3.0

    with caches.using("evicting"):
        USES[use](function)
        assert seen
        once = len(traces)
        caches.forget_traces(seen)
        USES[use](function)
    assert len(traces) == 2 * once


def test_other_functions_are_kept():
    traces = []

    @jax.jit
    def kept(x):
        traces.append(x)
        return x

    kept(jnp.ones(2))
    caches.forget_traces([lambda x: x])
    kept(jnp.ones(2))
    assert len(traces) == 1


def test_nothing_is_being_traced_outside():
    assert caches.functions_being_traced() == []
