"""Byte orders, masks and 64-bit integers of NumPy arrays, at every function through which arrays reach the devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.errors import ArgumentError

COUNT = 4


@pytest.fixture
def strategy() -> mr.Strategy:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def local(strategy: mr.Strategy, value: Any) -> Any:
    return np.asarray(strategy.experimental_local_results(value)[0])


def first_of(strategy: mr.Strategy, data: Any, options: InputOptions | None = None) -> Any:
    batch = next(iter(strategy.experimental_distribute_dataset(data, options)))
    return np.asarray(strategy.gather(batch, axis=0))


def from_function(strategy: mr.Strategy, x: np.ndarray) -> Any:
    return np.asarray(strategy.gather(next(iter(strategy.distribute_datasets_from_function(lambda _: [x]))), axis=0))


def in_scope(strategy: mr.Strategy, x: np.ndarray) -> Any:
    with strategy.scope():
        return mr.Variable(x).numpy()


def assigned(_: mr.Strategy, x: np.ndarray) -> Any:
    variable = mr.Variable(np.zeros(COUNT, x.dtype.newbyteorder("=")))
    variable.assign(x)
    return variable.numpy()


def run(strategy: mr.Strategy, x: np.ndarray) -> Any:
    return local(strategy, strategy.run(lambda y: y * 1, args=(x,)))


def compiled_run(strategy: mr.Strategy, x: np.ndarray) -> Any:
    return local(strategy, mr.function(lambda y: strategy.run(lambda z: z * 1, args=(y,)))(x))


DOORS: dict[str, Callable[[mr.Strategy, np.ndarray], Any]] = {
    "Variable": lambda _, x: mr.Variable(x).numpy(),
    "Variable in scope": in_scope,
    "assign": assigned,
    "mirror": lambda _, x: mr.mirror({"x": x})["x"].numpy(),
    "run": run,
    "compiled run": compiled_run,
    "function": lambda _, x: np.asarray(mr.function(lambda y: y * 1)(x)),
    "list of batches": lambda strategy, x: first_of(strategy, [x]),
    "arrays": lambda strategy, x: first_of(strategy, x, InputOptions(batch_size=COUNT)),
    "from_tensor_slices": lambda strategy, x: first_of(strategy, Dataset.from_tensor_slices(x).batch(COUNT)),
    "map": lambda strategy, x: first_of(strategy, Dataset.range(1).map(lambda _: x)),
    "padded": lambda strategy, x: first_of(
        strategy, Dataset.from_tensor_slices({"x": x}).map(lambda e: e["x"]).batch(4)
    ),
    "datasets_from_function": from_function,
    "values_from_function": lambda strategy, x: local(
        strategy, strategy.experimental_distribute_values_from_function(lambda _: x)
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype", [">i4", ">i2", ">f4", ">f8", ">u4", ">c8"])
def test_arrays_of_the_other_byte_order_keep_their_values(strategy: mr.Strategy, door: str, dtype: str) -> None:
    expected = np.arange(COUNT) * 3 + 1
    got = DOORS[door](strategy, expected.astype(dtype))
    np.testing.assert_array_equal(got, expected)


def test_a_memory_mapped_file_of_the_other_byte_order_keeps_its_values(strategy: mr.Strategy, tmp_path: Path) -> None:
    np.arange(8, dtype=">i4").reshape(4, 2).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", ">i4", "r", shape=(4, 2))
    got = first_of(strategy, Dataset.from_tensor_slices(rows).shuffle(4, seed=1).batch(4))
    np.testing.assert_array_equal(np.sort(got.ravel()), np.arange(8))


@pytest.mark.parametrize("door", DOORS)
def test_masked_arrays_are_refused(strategy: mr.Strategy, door: str) -> None:
    masked = np.ma.masked_array([1.0, 2.0, 3.0, 4.0], mask=[False, True, False, False])
    with pytest.raises(mr.errors.MirroredError, match="MaskedArray") as caught:
        DOORS[door](strategy, masked)
    assert "filled" in str(caught.value)


def test_a_checkpoint_refuses_a_masked_array(tmp_path: Path) -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    checkpoint = mr.checkpoint.Checkpoint(parts={"x": masked}, v=mr.Variable(1.0))
    with pytest.raises(mr.errors.ArgumentError, match="MaskedArray"):
        checkpoint.write(tmp_path / "c")


@pytest.mark.parametrize("door", [door for door in DOORS if door != "run"])
@pytest.mark.parametrize("value", [2**40, -(2**31) - 1])
def test_integers_that_do_not_fit_into_32_bits_are_refused(strategy: mr.Strategy, door: str, value: int) -> None:
    with pytest.raises(mr.errors.MirroredError, match="int32"):
        DOORS[door](strategy, np.array([value, 1, 2, 3]))


@pytest.mark.parametrize("scalar", [np.int64(2**40), np.uint64(2**33)])
def test_a_function_refuses_a_numpy_integer_that_does_not_fit(scalar: np.generic) -> None:
    with pytest.raises(mr.errors.ArgumentError, match="do not fit"):
        mr.function(lambda x: x * 1)(scalar)


HOST_ARRAYS = pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("x", "i4")]),
        np.array([{}], object),
    ],
    ids=lambda array: str(array.dtype),
)


@HOST_ARRAYS
def test_a_compiled_function_names_dtypes_that_jax_does_not_have(array: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match="dtype"):
        mr.function(lambda x: x)(array)


@HOST_ARRAYS
def test_values_of_dtypes_that_jax_does_not_have_stay_on_the_host(array: np.ndarray) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    values = strategy.experimental_distribute_values_from_function(lambda context: array)
    assert [part.tolist() for part in values.values] == [array.tolist()] * 2
