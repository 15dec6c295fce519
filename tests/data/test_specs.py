"""Specs as JSON-like data, and the empty batches that they describe."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.data.specs import ArraySpec, empty_batch, from_json, spec_of, to_json


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


@pytest.mark.parametrize(
    "element",
    [
        np.zeros((2, 3), np.float32),
        {"x": np.zeros(2, np.int64), "y": (np.zeros(1, bool), [np.zeros((4, 0), np.uint8)])},
        (np.zeros((2, 5), jnp.bfloat16),),
        [],
    ],
    ids=["array", "nested", "bfloat16", "none"],
)
def test_specs_as_json(element: Any) -> None:
    spec = spec_of(element)
    restored = from_json(json.loads(json.dumps(to_json(spec))))
    assert restored == spec
    assert jax.tree.structure(restored) == jax.tree.structure(spec)


def test_other_containers_have_no_json() -> None:
    for element in (Pair(np.zeros(1), np.zeros(2)), {1: np.zeros(1)}):
        with pytest.raises(TypeError, match="in a spec"):
            to_json(spec_of(element))


def test_empty_batches() -> None:
    made = empty_batch({"x": ArraySpec((None, 3), np.dtype("float32")), "y": (ArraySpec((4,), np.dtype("int64")),)})
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), made) == {
        "x": ((0, 3), "float32"),
        "y": (((0,), "int64"),),
    }
    assert empty_batch(ArraySpec((), np.dtype("int64"))) is None
    assert empty_batch(ArraySpec((2, None), np.dtype("int64"))) is None
