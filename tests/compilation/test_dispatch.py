"""Compiled steps that fail, alone or in a job of several workers: what they name, record and compare afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored._jax.interrupts import CacheMisses
from mirrored.compilation import dispatch, program
from mirrored.compilation.dispatch import WorkerArguments
from mirrored.errors import DisagreementError, LostStateError
from mirrored.watchdog.collective_log import collective_log


def test_a_lost_variable_names_the_error_of_the_step_that_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    v = mr.Variable(jnp.zeros(3), name="v")
    step = mr.function(lambda: v.assign_add(jnp.ones(3)))

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        v._array.delete()
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(CacheMisses, "__call__", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            step()
    for use in (step, v.numpy, step, v.numpy):
        with pytest.raises(LostStateError, match="^reading v: [a-z ]+ failed: RuntimeError: out of memory"):
            use()


def test_a_call_after_a_disagreement_compares_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged = []
    others = iter(["another program", "another program", "the program"])

    def allgather(called: str, question: str, value: Any) -> list[Any]:
        exchanged.append(question)
        return [value, [value[0], next(others)]]

    def equal(called: str, values: Any, **parts: str) -> None:
        exchanged.append(f"compare {next(iter(values))}")

    monkeypatch.setattr(dispatch, "host_allgather", allgather)
    monkeypatch.setattr(dispatch, "check_equal", equal)
    arguments = WorkerArguments("f", [np.ones(2)])
    for _ in range(2):
        with pytest.raises(DisagreementError, match="is not the program on worker 0"):
            arguments.arrive([np.ones(3)], "the program")
    arguments.arrive([np.ones(3)], "the program")
    assert exchanged == [
        *["call f for the first time"] * 3,
        "compare array 0 of its arguments",
        "compare captured array 0",
    ]


@pytest.mark.parametrize("under_tape", [False, True])
@pytest.mark.parametrize("donate", [False, True])
def test_a_call_that_fails_before_the_dispatch_is_not_logged_as_running(
    under_tape: bool, donate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    monkeypatch.setattr(program, "several_processes", lambda *_: strategy.device_assignment)
    monkeypatch.setattr(dispatch, "host_allgather", lambda called, question, value: [value])
    monkeypatch.setattr(dispatch, "check_equal", lambda *_, **parts: None)
    with strategy.scope():
        v, factor = mr.Variable(jnp.zeros(3)), mr.Variable(1.0, name="factor")
    step = mr.function(lambda x: strategy.run(lambda: v.assign_add(factor * x)), donate=donate)

    def called(x: Any) -> None:
        if not under_tape:
            step(x)
            return
        with mr.GradientTape():
            step(x)

    called(jnp.ones(3))
    elsewhere = jax.device_put(jnp.ones(3), jax.devices()[3])
    monkeypatch.setattr(dispatch, "placed", lambda array, *_, **parts: array)
    with pytest.raises(ValueError, match="devices"):
        called(elsewhere)
    assert not collective_log.inside
    factor.lose("out of memory")
    with pytest.raises(LostStateError, match="reading factor"):
        called(jnp.ones(3))
    assert not collective_log.inside


RESULTS: dict[str, Callable[[Any], Any]] = {
    "with a small one": lambda x: {"large": jnp.ones((64, 64)) * x[0], "loss": x[0], "key": jax.random.key(0)},
    "large ones only": lambda x: {"large": jnp.ones((512, 512)) * x[0]},
}


@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("results", RESULTS)
def test_steps_in_flight_keep_no_large_result(results: str, steps: int | None) -> None:
    v = mr.Variable(0.0)

    def count_and_compute(x: jax.Array) -> Any:
        v.assign_add(1.0)
        return RESULTS[results](x)

    step = mr.function(count_and_compute, steps_per_call=steps)
    batch = jnp.ones(3)
    kept = [weakref.ref(step(batch if steps is None else [batch] * steps)["large"]) for _ in range(12)]
    gc.collect()
    assert [one() for one in kept] == [None] * 12
    assert float(v) == 12.0 * (steps or 1)
