"""A function with a deterministic run inside another program or transform of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.tape.forward_accumulator import ForwardAccumulator

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


FORWARD = {
    "jvp": lambda f: mr.function(lambda x: jax.jvp(f, (x,), (x,))[1])(X),
    "jacfwd": lambda f: mr.function(jax.jacfwd(f))(X),
    "hessian": lambda f: mr.function(jax.hessian(f))(X),
    "jvp of a function": lambda f: jax.jvp(mr.function(f), (X,), (X,)),
}


def reduced(devices: int) -> Callable[[Any], Any]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2, deterministic=True)
    return lambda x: strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x**3), args=(x,)), axis=None)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("how", FORWARD)
def test_forward_mode_of_a_deterministic_run_names_reverse_mode(how: str, devices: int) -> None:
    with pytest.raises(mr.errors.TransformError, match=r"deterministic=True(?s:.)*jax\.jacrev instead of jax\.jacfwd"):
        FORWARD[how](reduced(devices))


@pytest.mark.parametrize("devices", [1, 2])
def test_remedies_for_forward_mode_of_a_deterministic_run(devices: int) -> None:
    total = reduced(devices)
    hessian = mr.function(lambda x: jax.jacrev(jax.grad(total))(x))(X)
    np.testing.assert_array_equal(hessian, np.diag(12 * np.asarray(X)))
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2, deterministic=True)
    inside = mr.function(lambda x: strategy.run(lambda x: jax.jvp(lambda x: x**2, (x,), (x,))[1], args=(x,)))(X)
    assert inside.values[1].tolist() == [2.0, 8.0]


def test_forward_mode_of_another_function_has_the_error_of_jax() -> None:
    function = jax.custom_vjp(jnp.sin)
    function.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (cotangent * jnp.cos(x),))
    with pytest.raises(TypeError, match="forward-mode") as raised:
        mr.function(lambda x: jax.jvp(function, (x,), (x,)))(X)
    assert not isinstance(raised.value, mr.errors.MirroredError)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_forward_accumulator_around_a_deterministic_run(devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=4, deterministic=True)

    @mr.function
    def along(x: Any) -> Any:
        with ForwardAccumulator(x, jnp.asarray([1.0, 10.0])) as accumulator:
            y = strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x**3), args=(x,)), axis=None)
        return accumulator.jvp(y)

    assert float(along(X)) == 4 * (3.0 * 1.0 + 12.0 * 10.0)


def made(*, deterministic: bool) -> Callable[[Any], Any]:
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2, deterministic=deterministic)

    @mr.function
    def total(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(x,)), axis=None)

    return total
