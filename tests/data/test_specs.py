"""Specs as JSON-like data, and the empty batches that they describe."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.data import Dataset
from mirrored.data.layout import Layout
from mirrored.data.specs import ArraySpec, empty_batch, from_json, spec_of, to_json
from mirrored.errors import ArgumentError, StructureError


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


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2**40 + 5, "int32"), (300, "uint8"), (-1, "uint8"), (1.5, "int32"), ([1, 2**40], "int32"), (np.inf, "int64")],
    ids=str,
)
@pytest.mark.parametrize("form", ["output_signature", "output_types"])
def test_a_cast_to_integers_changes_no_value(value: Any, dtype: str, form: str) -> None:
    spec = ArraySpec(np.shape(value), np.dtype(dtype))
    dataset = Dataset.from_generator(lambda: iter([value]), **{form: spec if form == "output_signature" else dtype})
    with pytest.raises(StructureError, match=f"{form} requires .*{dtype}"):
        list(dataset)


def test_a_cast_to_integers_with_room_for_the_values() -> None:
    for signature in (np.dtype("uint8"), np.dtype("int64"), np.dtype("float32")):
        spec = ArraySpec((2,), signature)
        (found,) = Dataset.from_generator(lambda: iter([[0, 255]]), output_signature=spec)
        assert (found.dtype, found.tolist()) == (signature, [0, 255])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, "float64"),
        (1e300, "float64"),
        ([0.1, 1e300], "float64"),
        ((0.1, 1e300), "float64"),
        (0.1 + 0.2j, "complex128"),
        (2**40 + 5, "float64"),
        (2**63 + 1, "uint64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["output_signature", "output_types and output_shapes", "output_types"])
def test_a_cast_to_64_bits_changes_no_value(value: Any, dtype: str, form: str) -> None:
    if form == "output_signature":
        options: dict[str, Any] = {form: ArraySpec(np.shape(value), np.dtype(dtype))}
    else:
        options = dict(zip(form.split(" and "), (dtype, np.shape(value)), strict=False))
    if form == "output_types" and isinstance(value, tuple):
        value = list(value)  # a tuple is a structure there
    (found,) = Dataset.from_generator(lambda: iter([value]), **options)
    assert (found.dtype, found.tolist()) == (dtype, list(value) if isinstance(value, tuple) else value)


def test_a_range_has_only_numbers_of_its_dtype() -> None:
    for numbers, dtype in [((126, 130), "int8"), ((3, -2, -1), "uint8"), ((2**63 + 1,), "int64")]:
        with pytest.raises(ArgumentError, match=rf"output_type={dtype}\n.*every number of the range"):
            Dataset.range(*numbers, output_type=dtype)
    assert next(iter(Dataset.range(126, 128, output_type="int8").batch(4))).tolist() == [126, 127]
    assert list(Dataset.range(500, 500, output_type="int8")) == []


def test_the_state_of_a_scan_stays_in_its_dtype() -> None:
    dataset = Dataset.range(3).scan(1, lambda state, n: (np.int64(state) * 2**20, state))
    with pytest.raises(StructureError, match=r"Dataset\.scan: scan_func changed the state"):
        list(dataset)


def test_the_state_of_a_scan_of_64_bits_keeps_python_numbers() -> None:
    dataset = Dataset.range(2).scan(np.float64(0), lambda state, _: (1e300, state))
    assert [float(state) for state in dataset] == [0.0, 1e300]


def test_the_spec_of_elements_of_different_ranks_is_refused() -> None:
    flat, square = Dataset.from_tensors(np.zeros(2)), Dataset.from_tensors(np.zeros((2, 2)))
    with pytest.raises(StructureError, match=r"one number of dims"):
        flat.concatenate(square).element_spec  # noqa: B018


@pytest.mark.parametrize("dtype", ["S3", "U2", "datetime64[D]", "timedelta64[s]", "bool", "bfloat16", "O"])
def test_the_layout_of_batches_is_restored(dtype: str) -> None:
    kept, again = Layout(), Layout()
    kept.keep()
    kept.note({"a": np.zeros((2, 3), np.dtype(jnp.bfloat16 if dtype == "bfloat16" else dtype))})
    again.set_state(json.loads(json.dumps(kept.get_state())))
    assert again.empty()["a"].shape == (0, 3)
    assert again.empty()["a"].dtype == (jnp.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("step", [1, 2**62, -3])
def test_a_range_beyond_int64_is_batched(step: int) -> None:
    numbers = range(2**63 + 1, 2**63 + 1 + 2 * step, step)
    dataset = Dataset.range(numbers.start, numbers.stop, step, output_type="uint64")
    assert next(iter(dataset.batch(2))).tolist() == list(numbers)
