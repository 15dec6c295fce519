"""Elements, batches and specs keep the order of the keys of dicts, whatever a pipeline does with them.

``tf.concat(list(features.values()), -1)`` would exchange columns without an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored import tf
from mirrored.data import Dataset


def _rows() -> Any:
    return Dataset.from_tensor_slices({"z": np.arange(8.0), "a": {"y": np.arange(8), "b": np.ones((8, 2))}})


def _generated() -> Any:
    return Dataset.from_generator(lambda: iter([{"z": 1.0, "a": {"y": 1, "b": np.ones(2)}}] * 8))


def _signed() -> Any:
    signature = {
        "z": tf.TensorSpec((), "float32"),
        "a": {"y": tf.TensorSpec((), "int32"), "b": tf.TensorSpec((2,), "float32")},
    }
    return Dataset.from_generator(
        lambda: iter([{"a": {"b": np.ones(2), "y": 1}, "z": 1.0}] * 8), output_signature=signature
    )


def _typed() -> Dataset:
    types = {"z": "float32", "a": {"y": "int32", "b": "float32"}}
    return Dataset.from_generator(lambda: iter([{"a": {"b": np.ones(2), "y": 1}, "z": 1.0}] * 8), output_types=types)


SOURCES = {
    "slices": _rows,
    "one element": lambda: Dataset.from_tensors({"z": 1.0, "a": {"y": 1, "b": np.ones(2)}}),
    "generator": _generated,
    "generator of types": _typed,
    "in sequence": lambda: _rows().filter(lambda row: row["z"] >= 0),
    "file": None,
}
STEPS = {
    "none": lambda data: data,
    "batch": lambda data: data.batch(2),
    "padded_batch": lambda data: data.padded_batch(2),
    "unbatch": lambda data: data.batch(2).unbatch(),
    "rebatch": lambda data: data.batch(2).rebatch(3),
    "map": lambda data: data.map(lambda row: {"z": row["z"], "a": {"y": row["a"]["y"], "b": row["a"]["b"]}}),
    "filter": lambda data: data.filter(lambda row: row["z"] >= 0),
    "take": lambda data: data.take(3),
    "skip": lambda data: data.repeat(2).skip(1),
    "shard": lambda data: data.shard(1, 0),
    "repeat": lambda data: data.repeat(2),
    "shuffle": lambda data: data.shuffle(4, seed=1),
    "cache": lambda data: data.cache(),
    "prefetch": lambda data: data.prefetch(2),
    "concatenate": lambda data: data.concatenate(data),
    "interleave": lambda data: Dataset.range(2).interleave(lambda _: data),
    "flat_map": lambda data: Dataset.range(2).flat_map(lambda _: data),
    "take_while": lambda data: data.take_while(lambda row: row["z"] < 5),
    "scan": lambda data: data.scan(0, lambda state, row: (state, row)),
    "mix": lambda data: Dataset.sample_from_datasets([data, data], seed=1),
    "window": lambda data: data.window(2),
    "group_by_window": lambda data: data.group_by_window(lambda _: 0, lambda _, part: part.batch(2), window_size=2),
}


def _assert_unsorted(element: Any) -> None:
    assert list(element) == ["z", "a"]
    assert list(element["a"]) == ["y", "b"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("step", STEPS)
def test_elements_and_specs_have_the_order_of_insertion(source: str, step: str, tmp_path: Path) -> None:
    if source == "file":
        _rows().save(str(tmp_path / "saved"))
        data = Dataset.load(str(tmp_path / "saved"))
    else:
        data = SOURCES[source]()  # type: ignore[misc]
    changed = STEPS[step](data)
    _assert_unsorted(changed.element_spec)
    iterator = iter(changed)
    _assert_unsorted(next(iterator))


def test_a_signature_orders_the_elements_of_a_generator() -> None:
    data = _signed()
    _assert_unsorted(data.element_spec)
    _assert_unsorted(next(iter(data)))
    _assert_unsorted(next(iter(data.batch(2))))


def test_zip_keeps_the_order_of_a_dict_of_datasets() -> None:
    data = Dataset.zip({"z": Dataset.range(3), "a": Dataset.range(3)})
    assert list(data.element_spec) == list(next(iter(data))) == ["z", "a"]


@pytest.mark.parametrize("rows", [4, 3])
@pytest.mark.parametrize("last_batch", ["split", "pad", "drop"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_distributed_batches_have_the_order_of_insertion(rows: int, last_batch: Any, replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[: min(replicas, 2)], num_replicas=replicas)
    for batch in strategy.distribute_dataset(_rows().batch(rows), mr.InputOptions(last_batch=last_batch)):
        _assert_unsorted(batch[0] if isinstance(batch, tuple) else batch)
    for batch in strategy.distribute_datasets_from_function(lambda _: _rows().batch(rows)):
        _assert_unsorted(batch)


def test_restored_iterators_have_the_order_of_insertion() -> None:
    iterator = iter(_rows().shuffle(4, seed=1).repeat(2).batch(2))
    next(iterator)
    other = iter(_rows().shuffle(4, seed=1).repeat(2).batch(2))
    other.set_state(iterator.get_state())
    _assert_unsorted(next(other))


def test_the_facade_has_the_order_of_insertion() -> None:
    data = tf.data.Dataset.from_tensor_slices({"z": np.arange(8.0), "a": {"y": np.arange(8), "b": np.ones((8, 2))}})
    for changed in (data, data.batch(2), data.map(lambda row: row), data.batch(2).map(lambda row: row)):
        _assert_unsorted(changed.element_spec)
        _assert_unsorted(next(iter(changed)))
    _assert_unsorted(next(data.batch(2).as_numpy_iterator()))
