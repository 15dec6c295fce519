"""Compiled steps that fail, alone or in a job of several workers: what they name, record and compare afterwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored._jax.dispatch import CacheMisses
from mirrored.compilation import dispatch
from mirrored.compilation.dispatch import WorkerArguments
from mirrored.errors import DisagreementError, LostStateError


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
