"""Every entry of the table of operations gives what TensorFlow documents, eagerly and traced by `jax.jit`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._names import NAMES
from mirrored.tf._table import OPS
from tf.op_cases import Case

MODULES = (
    "arrays", "control", "elementwise", "image", "linalg", "nn", "random", "recorded", "reductions", "signal",
)  # fmt: skip
CASES: list[Case] = [one for name in MODULES for one in importlib.import_module(f"tf.op_cases.{name}").CASES]

# Entries whose effect lasts, or that work on texts, are tested in test_random.py and test_strings.py.
ELSEWHERE = {"random.set_global_generator"} | {name for name in OPS if name.startswith("strings.")}


def resolve(path: str) -> Any:
    found: Any = tf
    for part in path.split("."):
        found = getattr(found, part)
    return found


def compare(found: Any, expected: Any, rtol: float) -> None:
    if callable(expected):
        assert expected(found), f"got {found!r}"
    elif expected is None:
        assert found is None
    elif isinstance(found, (list, tuple)) and not isinstance(expected, np.ndarray):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other, rtol)
    else:
        wanted = np.asarray(expected)
        actual = np.asarray(found)
        assert actual.shape == wanted.shape
        assert (actual.dtype.kind == "b") == (wanted.dtype.kind == "b")
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=max(1e-6, rtol / 10))


def call(case: Case, arrays: list[Any]) -> Any:
    leaves, treedef = jax.tree.flatten((case.args, case.kwargs), is_leaf=lambda one: one is None)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]
    for k, array in zip(places, arrays, strict=True):
        leaves[k] = array
    args, kwargs = jax.tree.unflatten(treedef, leaves)
    return resolve(case.op)(*args, **kwargs)


def arrays_of(case: Case) -> list[np.ndarray]:
    return [leaf for leaf in jax.tree.leaves((case.args, case.kwargs)) if isinstance(leaf, np.ndarray)]


@pytest.fixture(autouse=True)
def without_check_numerics() -> Iterator[None]:
    """Undoes `tf.debugging.enable_check_numerics`, a case: the one that undoes it may run elsewhere, or not at all."""
    yield
    tf.debugging.disable_check_numerics()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.sampled(5)
@pytest.mark.first(7)
def test_eager(case: Case) -> None:
    compare(call(case, arrays_of(case)), case.expected, case.rtol)


@pytest.mark.parametrize("case", [one for one in CASES if one.traced and arrays_of(one)], ids=lambda case: case.id)
@pytest.mark.sampled(8)
@pytest.mark.first(6)
def test_traced(case: Case) -> None:
    structure: list[Any] = []

    def run(arrays: list[Any]) -> Any:
        result = call(case, arrays)
        structure.append(result)
        return [one for one in jax.tree.leaves(result) if isinstance(one, (jax.Array, np.ndarray))]

    traced = iter(tf.function(run)([jax.numpy.asarray(one) for one in arrays_of(case)]))
    filled = jax.tree.map(lambda one: next(traced) if isinstance(one, (jax.Array, np.ndarray)) else one, structure[0])
    compare(filled, case.expected, case.rtol)


def test_every_entry_has_a_case() -> None:
    assert set(OPS) - {one.op for one in CASES} == ELSEWHERE


def test_every_case_has_an_entry() -> None:
    assert {one.op for one in CASES} <= set(OPS)


def test_the_table_is_as_large_as_promised() -> None:
    assert len(OPS) >= 250
    assert sum(len(one.places) for one in OPS.values()) > len(OPS)


@pytest.mark.parametrize("name", sorted(place for one in OPS.values() for place in one.places))
def test_every_place_is_reachable(name: str) -> None:
    assert resolve(name) is NAMES[name]


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_entry_says_what_it_does(name: str) -> None:
    assert OPS[name].function.__doc__
