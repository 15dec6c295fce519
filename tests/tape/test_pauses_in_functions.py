"""`stop_recording` and `reset` of a tape in functions inside its block: refused where the tape cannot pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import TapeError

X = jnp.array([1.0, 2.0, 3.0])
Wrapper = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]


def in_run(replicas: int, devices: int, compiled: bool) -> Wrapper:
    def wrapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)

        def step(y: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(function, args=(y,)), axis=None)

        return mr.function(step) if compiled else step

    return wrapped


def run_eagerly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(y: Any) -> Any:
        mr.config.run_functions_eagerly(True)
        try:
            return mr.function(function)(y)
        finally:
            mr.config.run_functions_eagerly(False)

    return call


REFUSED: dict[str, Wrapper] = {
    "jit": jax.jit,
    "cond": lambda f: lambda y: lax.cond(y[0] > 0, f, lambda y: 0.0, y),
    "scan": lambda f: lambda y: lax.scan(lambda total, _: (total + f(y), None), 0.0, None, length=2)[0],
    "checkpoint": jax.checkpoint,
    "function": mr.function,
    "vmap in jit": lambda f: jax.jit(lambda y: jax.vmap(f)(y[None])[0]),
    **{
        f"{'compiled' if compiled else 'eager'} run of {replicas} on {devices}": in_run(replicas, devices, compiled)
        for compiled in (True, False)
        for replicas, devices in ((1, 1), (2, 2), (2, 1))
    },
}
ACCEPTED: dict[str, Wrapper] = {
    "nothing": lambda f: f,
    "vmap": lambda f: lambda y: jax.vmap(f)(y[None])[0],
    "a function that runs eagerly": run_eagerly,
}


def gradient(wrapper: Wrapper, pause: str) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(X)

        def function(y: Any) -> Any:
            if pause == "reset":
                tape.reset()
                return jnp.sum(y)
            with tape.stop_recording():
                factor = jnp.sum(y)
            return jnp.sum(y**2) * factor

        value = wrapper(function)(X * 1.0)
    return tape.gradient(value, X)


@pytest.mark.parametrize("pause", ["stop_recording", "reset"])
@pytest.mark.parametrize("wrapper", REFUSED)
def test_a_tape_is_not_paused_in_a_traced_or_replica_function_inside_its_block(wrapper: str, pause: str) -> None:
    """The pause had no effect on the operation that the tape records for the function, or paused other replicas."""
    with pytest.raises(TapeError, match=rf"{pause}: the tape was opened outside[\s\S]*stop_gradient"):
        gradient(REFUSED[wrapper], pause)


@pytest.mark.parametrize("wrapper", ACCEPTED)
def test_a_tape_is_paused_in_functions_whose_operations_it_records(wrapper: str) -> None:
    assert gradient(ACCEPTED[wrapper], "stop_recording").tolist() == [12.0, 24.0, 36.0]


@pytest.mark.first(4)
@pytest.mark.parametrize("wrapper", REFUSED)
def test_the_remedies(wrapper: str) -> None:
    with mr.GradientTape() as tape:
        tape.watch(X)
        value = REFUSED[wrapper](lambda y: jnp.sum(y**2) * jnp.sum(lax.stop_gradient(y)))(X * 1.0)
    times = 2 if wrapper == "scan" else 1
    assert tape.gradient(value, X).tolist() == [12.0 * times, 24.0 * times, 36.0 * times]

    def own(y: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(y)
            with tape.stop_recording():
                factor = jnp.sum(y)
            value = jnp.sum(y**2) * factor
        return tape.gradient(value, y).sum()

    assert float(REFUSED[wrapper](own)(X * 1.0)) == 72.0 * times
