"""Objects that a compiled function cannot return: they would hold tracers, or be exhausted after the first call."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
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
    with pytest.raises(ArgumentError, match=rf"type {kind.__name__}, which .* it computes: {kind.__name__}\.loss"):
        step(jnp.float32(1.0))


class Batch(dict[str, Any]):
    """JAX takes an object of a subclass of dict as one leaf."""


class Rows(list[Any]):
    """A subclass of list, which is a leaf, too."""


_HOLDERS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "Batch": (lambda x: Batch(loss=x * 2), r"Batch\['loss'\]", r"dict\(\.\.\.\)"),
    "Rows": (lambda x: Rows([x * 2]), "an item of Rows", r"list\(\.\.\.\)"),
    "deque": (lambda x: collections.deque([x * 2]), "an item of deque", r"list\(\.\.\.\)"),
    "UserDict": (lambda x: collections.UserDict(loss=x * 2), r"UserDict\.data\['loss'\]", r"dict\(\.\.\.\)"),
    "ChainMap": (lambda x: collections.ChainMap({"loss": x * 2}), r".* of ChainMap\.maps\['loss'\]", r"dict\(\.\.\.\)"),
    "mappingproxy": (lambda x: types.MappingProxyType({"loss": x * 2}), r"mappingproxy\['loss'\]", r"dict\(\.\.\.\)"),
    "SimpleNamespace": (lambda x: types.SimpleNamespace(loss=x * 2), r"SimpleNamespace\.loss", "a dict"),
    "Plain": (lambda x: Plain([{"loss": x * 2}]), r"an item of Plain\.loss\['loss'\]", "a dict"),
    "function": (lambda x: lambda: x, "'x' in function", "a dict"),
    "partial": (lambda x: functools.partial(abs, x), "partial", "a dict"),
}


@pytest.mark.parametrize("kind", list(_HOLDERS))
@pytest.mark.parametrize("devices", [0, 1, 2], ids=["function", "run, one device", "run, two devices"])
def test_objects_that_hold_computed_arrays_are_refused(kind: str, devices: int) -> None:
    make, where, plain = _HOLDERS[kind]
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices or 1)], num_replicas=2)

    def step(x: jax.Array) -> Any:
        result = strategy.run(make, args=(x,)) if devices else make(x)
        return {"all": result} if devices != 1 else 0

    message = rf"type {kind}, which holds an array that it computes: {where}(?s:.*)remedy: return {plain}"
    with pytest.raises(ArgumentError, match=message):
        mr.function(step)(jnp.float32(1.0))


def test_a_run_in_a_function_returns_objects_that_hold_arrays_of_the_function() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    @mr.function
    def step(x: jax.Array) -> Any:
        given = Batch(loss=x * 2)
        assert strategy.run(lambda: given) is given
        return given["loss"]

    assert step(jnp.float32(1.0)) == 2.0


def test_other_objects_are_returned_as_they_are() -> None:
    constant = Plain(1.0)
    step = mr.function(lambda x: (x, constant, "name", range(2)))
    assert step(jnp.float32(1.0))[1:] == (constant, "name", range(2))
