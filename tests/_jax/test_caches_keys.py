"""The token in JAX's tracing caches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax._src import util as _util

from mirrored._jax import caches


@pytest.fixture(autouse=True)
def outside_of_tapes():
    with caches.using(None):
        yield


@pytest.fixture
def counted():
    traces = []

    @jax.jit
    def function(x):
        traces.append(x)
        return x + 1.0

    return function, traces


def test_default_is_none():
    assert caches.current() is None


def test_another_token_traces_again_and_the_same_does_not(counted):
    function, traces = counted
    for token in (None, "a", "a", None, "b", "a"):
        with caches.using(token):
            assert caches.current() == token
            function(1.0)
    assert len(traces) == 3


def test_fresh_is_never_the_same(counted):
    function, traces = counted
    for _ in range(3):
        with caches.fresh():
            function(1.0)
            function(1.0)
    assert len(traces) == 3
    assert caches.current() is None


def test_renew_within_fresh(counted):
    function, traces = counted
    with caches.fresh():
        function(1.0)
        caches.renew()
        function(1.0)
    assert len(traces) == 2
    assert caches.current() is None


def test_renew_elsewhere_changes_nothing():
    caches.renew()
    assert caches.current() is None
    with caches.using(caches.tape_token()):
        caches.renew()
        assert caches.current() == caches.tape_token()


def test_inner_traces_of_scan_and_checkpoint_obey_it():
    traces = []

    def body(carry, _):
        traces.append(carry)
        return carry * 2.0, None

    for token in ("a", "b", "b"):
        with caches.using(token):
            jax.lax.scan(body, jnp.ones(2), None, length=2)
    assert len(traces) == 2


def test_left_by_an_exception():
    with pytest.raises(KeyError, match="k"), caches.using("a"):
        raise KeyError("k")
    assert caches.current() is None


def test_the_traces_of_a_fresh_token_are_forgotten_with_it(counted):
    function, traces = counted
    function(1.0)
    with caches.fresh():
        jax.make_jaxpr(function)(1.0)
        caches.renew()
        jax.make_jaxpr(function)(1.0)
        tokens = _tokens_in_caches()
        assert len(tokens) >= 2
    assert not _tokens_in_caches() & tokens
    function(1.0)  # compiled already, without another trace
    assert len(traces) == 3


def _tokens_in_caches():
    caches = [cache for cache in list(_util._caches) if hasattr(cache, "evict_weakref")]
    contexts = [part for cache in caches for key in cache.cache_keys() for part in key if isinstance(part, tuple)]
    return {one for context in contexts for one in context if isinstance(one, tuple) and one[:1] == ("mirrored.trace",)}
