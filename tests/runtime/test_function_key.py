"""The functions that replicas pass to `merge_call`: the numbers and the code that they use must be equal."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.errors import MergeError
from wrapping import decorator


def closure(value: Any) -> Any:
    return lambda strategy: value


def nested(value: Any) -> Any:
    def helper() -> Any:
        return value

    return lambda strategy: helper()


def contained(value: Any) -> Any:
    values = {"deep": [value]}
    return lambda strategy: values


class Decorator:
    def __init__(self, function: Any, value: Any) -> None:
        functools.update_wrapper(self, function)
        self.function, self.value = function, value

    def __call__(self, strategy: Any) -> Any:
        return self.function(strategy) * self.value


class Attribute:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, strategy: Any) -> Any:
        return self.value


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: Any
    array: Any


class Named(NamedTuple):
    number: Any


NUMBERS = {
    "decorator": lambda own: decorator(own + 1.0),
    "decorator object": lambda own: Decorator(lambda strategy: 10.0, own + 1.0),
    "decorator that is jitted": lambda own: jax.jit(decorator(own + 1.0)),
    "tuple": lambda own: contained((own, "text")),
    "named tuple": lambda own: closure(Named(own)),
    "list": lambda own: contained([own]),
    "dict": lambda own: contained({"a": own}),
    "frozenset": lambda own: contained(frozenset({own})),
    "set": lambda own: contained({own}),
    "number in a tuple in a dict": lambda own: closure({"a": (1.0, {"b": (own,)})}),
    "length": lambda own: closure((1.0,) * (own + 1)),
    "helper": lambda own: closure((jnp.sin, jnp.cos)[own % 2]),
    "code of a helper": lambda own: closure((lambda x: x + 1.0) if own else (lambda x: x + 2.0)),
    "helper in a tuple": lambda own: closure(((lambda x: x + 1.0) if own else (lambda x: x + 2.0),)),
    "helper of a helper": lambda own: nested(lambda: own),
    "attribute": lambda own: Attribute(lambda x: x + own),
    "slice": lambda own: closure(slice(own, 2)),
    "range": lambda own: closure((range(own),)),
    "frozen dataclass": lambda own: closure(Frozen(own, jnp.ones(2))),
    "helper that is a bound method": lambda own: closure(Attribute(own).__call__),
    "attribute of a bound method": lambda own: Attribute(own).__call__,
    "default of a helper": lambda own: closure(lambda x, y=own: x + y),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_merged_function_must_not_close_over_numbers_or_code_that_differ(kind: str) -> None:
    """Replica 0's were used for all replicas, silently."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    def replica() -> Any:
        context = mr.get_replica_context()
        merged = NUMBERS[kind](context.replica_id_in_sync_group)
        context.merge_call(merged if kind.startswith(("decorator", "attribute")) else lambda strategy: merged and None)

    with pytest.raises(MergeError, match="with the function"):
        strategy.run(replica)


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_merged_function_may_close_over_equal_numbers_and_code(kind: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    def replica() -> Any:
        merged = NUMBERS[kind](1)
        return mr.get_replica_context().merge_call(lambda strategy: 3 if merged is not None else None)

    assert strategy.run(replica) == 3


def test_the_object_of_a_bound_method_may_change_if_all_replicas_share_it() -> None:
    strategy, shared = mr.MirroredStrategy(jax.devices()[:2]), Attribute(0)

    def replica() -> Any:
        shared.value += 1
        return mr.get_replica_context().merge_call(shared.__call__)

    assert strategy.run(replica) == 2


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("row", [lambda: 1.0, lambda: (1, 2.0), dict, list], ids=["number", "tuple", "dict", "list"])
def test_a_merged_function_may_append_to_lists(row: Any, shared: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    rows: list[Any] = []

    def replica() -> None:
        own, by_name = (rows if shared else []), {}
        if shared:
            own.append(row())
        for _ in range(3):
            mr.get_replica_context().merge_call(lambda strategy: own.append(row()) or by_name.update({len(own): row()}))

    strategy.run(replica)
    assert len(rows) == (5 if shared else 0)
