"""Objects that a compiled function cannot return: they would hold tracers, or be exhausted after the first call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError


@dataclasses.dataclass
class Plain:
    loss: Any
    name: str = "loss"


class Slotted:
    __slots__ = ("loss",)

    def __init__(self, loss: Any) -> None:
        self.loss = loss


_ITERATORS: dict[str, Callable[[Any], Any]] = {
    "generator": lambda x: (one for one in [x]),
    "zip": lambda x: zip([x], [x], strict=True),
    "map": lambda x: map(abs, [x]),
    "list_iterator": lambda x: iter([x]),
}


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")  # JAX's, for such leaves of a pytree
@pytest.mark.parametrize("kind", list(_ITERATORS))
@pytest.mark.parametrize("in_run", [False, True], ids=["function", "run"])
def test_iterators_are_refused(kind: str, in_run: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    make = _ITERATORS[kind]
    step = mr.function(lambda x: strategy.run(make, args=(x,)) if in_run else [make(x)])
    with pytest.raises(ArgumentError, match=f"returns an object of type {kind}, a Python iterator"):
        step(jnp.float32(1.0))


@pytest.mark.parametrize("kind", [Plain, Slotted])
@pytest.mark.parametrize("in_run", [False, True], ids=["function", "run"])
def test_unregistered_classes_with_computed_attributes_are_refused(kind: Any, in_run: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    step = mr.function(lambda x: strategy.run(lambda x: kind(x * 2), args=(x,)) if in_run else {"all": kind(x * 2)})
    with pytest.raises(ArgumentError, match=f"type {kind.__name__}, whose attribute 'loss' it computes"):
        step(jnp.float32(1.0))


def test_other_objects_are_returned_as_they_are() -> None:
    constant = Plain(1.0)
    step = mr.function(lambda x: (x, constant, "name", range(2)))
    assert step(jnp.float32(1.0))[1:] == (constant, "name", range(2))
