"""Compiled steps that fail, alone or in a job of several workers: what they name, record and compare afterwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored._jax.dispatch import CacheMisses
from mirrored.errors import LostStateError


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
