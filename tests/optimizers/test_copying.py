"""An optimizer can be copied only while it has no state, because state belongs to its variables."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import mirrored as mr

MAKERS: dict[str, Callable[[], Any]] = {
    "named": lambda: mr.optimizers.SGD(0.5, momentum=0.9),
    "optax": lambda: mr.optimizers.Optimizer(optax.sgd(0.5)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_an_optimizer_without_state_is_copied(make, how):
    first = make()
    second = how(first)
    with mr.OneDeviceStrategy("CPU:0").scope():
        v, w = mr.Variable(1.0), mr.Variable(1.0)
    first.apply_gradients([(jnp.float32(1.0), v)])
    first.apply_gradients([(jnp.float32(1.0), v)])
    second.apply_gradients([(jnp.float32(1.0), w)])
    assert (int(first.iterations.numpy()), int(second.iterations.numpy())) == (2, 1)
    assert float(w) == 0.5
    assert type(second) is type(first)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_optimizer_with_state_says_what_to_do_instead(make, how):
    optimizer = make()
    v = mr.Variable(1.0)
    optimizer.apply_gradients([(jnp.float32(1.0), v)])
    with pytest.raises(mr.errors.ArgumentTypeError, match=r"Checkpoint\(model=\.\.\., optimizer=\.\.\.\)"):
        how({"model": v, "optimizer": optimizer} if how is not copy.copy else optimizer)
