"""A function with a deterministic run inside another program of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr

X = jnp.asarray([1.0, 2.0])
TRACED = {
    "jit": lambda f: jax.jit(f)(X),
    "scan": lambda f: jax.lax.scan(lambda carry, x: (carry, f(x)), 0.0, X),
    "cond": lambda f: jax.lax.cond(X[0] > 0.0, f, lambda x: x.sum(), X),
}


@pytest.mark.parametrize("how", TRACED)
def test_a_deterministic_function_is_a_program_of_its_own(how: str) -> None:
    total = made(deterministic=True)
    with pytest.raises(mr.errors.TransformError, match="contains a run with deterministic=True"):
        TRACED[how](total)
    assert float(total(X)) == 6.0


def test_a_deterministic_function_inside_another_compiled_function_and_under_transforms() -> None:
    total = made(deterministic=True)
    assert float(mr.function(lambda x: total(x))(X)) == 6.0
    assert jax.vmap(total)(X[None]).tolist() == [6.0]
    if jax.__version_info__ >= (0, 11):  # before, `jax.grad` traces such a function as a part of another program
        assert jax.grad(total)(X).tolist() == [2.0, 2.0]
    else:
        with pytest.raises(mr.errors.TransformError, match=r"with JAX 0\.10 also `jax\.grad`"):
            jax.grad(total)(X)


def made(*, deterministic: bool) -> Callable[[Any], Any]:
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2, deterministic=deterministic)

    @mr.function
    def total(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(x,)), axis=None)

    return total
