"""The comparison of state between workers, with two checkpoints of this process as those of two workers."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.worker_state import WorkerState, warn_of_differences


def state_of(parts: dict[str, Any]) -> WorkerState:
    graph = Checkpoint(**parts).graph()
    return WorkerState.of({name: leaf.read() for name, leaf in graph.leaves.items()}, graph.leaves)


def compared(*workers: dict[str, Any], told: set[str] | None = None) -> list[str]:
    """The first lines of the warnings on worker 0."""
    told = set() if told is None else told
    states = [state_of(parts) for parts in workers]

    def exchange(own: Any) -> list[Any]:
        first = states[0].digests(told)
        others = [state.digests(told) for state in states[1:]]
        unequal = [part for part in first if any(other.get(part) != first[part] for other in others)]
        unequal += [part for other in others for part in other if part not in first]
        return [own, *(state.values(unequal, told) for state in states[1:])]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_differences("Checkpoint.save", states[0], [one.digests(told) for one in states], told, exchange)
    return [str(one.message).partition("\n")[0].partition("workers: ")[2] for one in caught]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.float32(np.nan), -np.float32(np.nan)),
        (np.array([np.nan, np.inf, -np.inf]), np.array([-np.nan, np.inf, -np.inf])),
        (np.array([np.nan], ml_dtypes.bfloat16), np.array([-np.nan], ml_dtypes.bfloat16)),
        (np.array([complex(0, np.nan)]), np.array([complex(0, -np.nan)])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.asfortranarray(np.eye(2)), np.eye(2)),
        (np.array([1e38, 1e38], np.float32), np.array([1e38, 1e38], np.float32)),
        (np.ones(2, ml_dtypes.int4), np.ones(2, ml_dtypes.int4)),
        (jnp.float32(1), jnp.float32(1)),
        (2**200, 2**200),
        (float("nan"), float("nan")),
    ],
)
def test_equal_values_are_not_reported(ours, theirs):
    assert compared({"x": ours, "step": 1}, {"x": theirs, "step": 1}) == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.array([0.0]), np.array([-0.0])),
        (np.array([np.inf]), np.array([np.nan])),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (1, True),
        (1, np.int64(1)),
        (0.1 + 0.2, 0.3),
        (mr.Variable(1.0), mr.Variable(2.0)),
    ],
)
def test_other_bits_types_and_shapes_are_reported(ours, theirs):
    assert len(compared({"x": ours}, {"x": theirs})) == 1


def test_of_three_workers_the_first_one_that_differs_is_named():
    assert compared({"x": 1}, {"x": 1}, {"x": 3}) == ["x is 1 on worker 0 and 3 on worker 2"]


def test_an_item_is_reported_once_and_a_list_as_a_whole():
    told: set[str] = set()
    assert compared({"x": 1, "h": {"l": [1]}}, {"x": 2, "h": {"l": [2]}}, told=told) == [
        "x is 1 on worker 0 and 2 on worker 1; h/l/0 is 1 on worker 0 and 2 on worker 1"
    ]
    assert compared({"x": 1, "h": {"l": [1, 1]}}, {"x": 2, "h": {"l": [2, 2]}}, told=told) == []
    assert compared({"x": 1, "h": {"m": 1}}, {"x": 2, "h": {"m": 2}}, told=told) == [
        "h/m is 1 on worker 0 and 2 on worker 1"
    ]


def test_lists_of_many_values_and_unequal_lengths():
    many = list(range(700))
    assert compared({"x": many, "y": 1}, {"x": [*many, 1], "y": 1}) == ["x has 700 values, of which later ones differ"]
    assert compared({"x": many}, {"x": [1, *many[1:]]}) == ["x/0 is 0 on worker 0 and 1 on worker 1"]


def test_names_that_only_some_workers_have_are_reported():
    assert compared({"x": {"a": 1}}, {"x": {"a": 1, "b": 2}}) == ["x/b is absent on worker 0 and 2 on worker 1"]
    assert compared({"x": 1}, {"x": 1, "r": np.random.default_rng(0)}) == [
        "r is absent on worker 0 and a position on worker 1"
    ]
    assert compared({"x": 1, "r": np.random.default_rng(0)}, {"x": 1, "r": np.random.default_rng(1)}) == []
