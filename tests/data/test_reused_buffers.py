"""Sources, functions and callers that overwrite an array after they have passed it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.data.pipeline.indexed_sources import ArraySource

ROWS, WIDTH, BATCHES = 8, 16, 12


def buffer(shape: tuple[int, ...] = (ROWS, WIDTH), offset: int = 0) -> np.ndarray:
    """A float32 array that begins `offset` bytes after a multiple of 64: CPU devices alias it with an offset of 0."""
    size = 4 * int(np.prod(shape))
    raw = np.empty(size + 128, np.uint8)
    offset += -raw.ctypes.data % 64
    return raw[offset : offset + size].view(np.float32).reshape(shape)


class Refilling:
    """A loader that reuses one array for all batches."""

    def __init__(self, view: Callable[[np.ndarray], Any] = lambda array: array) -> None:
        self._view = view

    def __iter__(self) -> Iterator[Any]:
        array = buffer()
        for number in range(BATCHES):
            array[...] = number
            yield self._view(array)


def read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def refilled_rows() -> Iterator[np.ndarray]:
    row = buffer((WIDTH,))
    for number in range(BATCHES):
        for _ in range(ROWS):
            row[...] = number
            yield row


def scratch() -> Callable[[Any], np.ndarray]:
    array = buffer()

    def fill(number: Any) -> np.ndarray:
        array[...] = number
        return array

    return fill


def keeping() -> Callable[[np.ndarray], np.ndarray]:
    """A function that overwrites its previous argument."""
    seen: list[np.ndarray] = []

    def keep(batch: np.ndarray) -> np.ndarray:
        for old in seen:
            old[...] = -1
        seen[:] = [batch]
        return batch

    return keep


def in_place(state: np.ndarray, number: Any) -> tuple[np.ndarray, np.ndarray]:
    """A function that returns its state as an element."""
    state[...] = number
    return state, state


def numbers() -> np.ndarray:
    return np.repeat(np.arange(BATCHES, dtype=np.float32), ROWS)[:, None] * np.ones(WIDTH, np.float32)


SOURCES: dict[str, Callable[[], Any]] = {
    "loader": Refilling,
    "read-only views": lambda: Refilling(read_only),
    "pytrees": lambda: Refilling(lambda array: {"x": array}),
    "generator": lambda: Dataset.from_generator(Refilling),
    "generator, cached": lambda: Dataset.from_generator(Refilling).cache(),
    "generator, prefetched": lambda: Dataset.from_generator(Refilling).prefetch(4),
    "generator, filtered": lambda: Dataset.from_generator(Refilling).filter(lambda x: True),
    "rows of a generator": lambda: Dataset.from_generator(refilled_rows).batch(ROWS),
    "rows of a generator, padded": lambda: Dataset.from_generator(refilled_rows).padded_batch(ROWS),
    "windows of a generator": lambda: (
        Dataset.from_generator(refilled_rows).window(ROWS).flat_map(lambda window: window.batch(ROWS))
    ),
    "scratch array of map": lambda: Dataset.range(BATCHES).map(scratch()),
    "scratch array of map, threads": lambda: Dataset.range(BATCHES).map(scratch()).prefetch(4),
    "scratch rows": lambda: Dataset.range(BATCHES).map(scratch()).unbatch().batch(ROWS),
    "scratch array of scan": lambda: Dataset.range(BATCHES).scan(np.zeros((ROWS, WIDTH), np.float32), in_place),
    "kept batches": lambda: Dataset.from_tensor_slices(numbers()).batch(ROWS).map(np.copy).map(keeping()),
    "kept batches of a stream": lambda: Dataset.from_generator(Refilling).map(keeping()),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_every_batch_is_what_it_was_when_it_was_read(devices: int, prefetch: int, name: str) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    distributed = strategy.experimental_distribute_dataset(SOURCES[name](), InputOptions(prefetch=prefetch))
    for _ in range(2):  # epochs
        batches = list(distributed)  # all at once: later batches must not have changed earlier ones
        found = [
            np.concatenate([np.asarray(part).ravel() for leaf in jax.tree.leaves(batch) for part in parts_of(leaf)])
            for batch in batches
        ]
        assert [values.tolist() for values in found] == [[number] * (ROWS * WIDTH) for number in range(BATCHES)]


def parts_of(leaf: Any) -> Any:
    return leaf.values if hasattr(leaf, "values") else [leaf]


@pytest.mark.parametrize("devices", [1, 2])
def test_elements_of_one_loader_for_several_replicas(devices: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    distributed = strategy.distribute_datasets_from_function(lambda _: Refilling())
    found = [float(part[0, 0]) for batch in distributed for part in parts_of(batch)]
    assert found == list(range(BATCHES))


def test_a_dataset_keeps_its_own_arrays() -> None:
    values, whole = numbers(), numbers()
    views = Dataset.from_tensor_slices(read_only(values)), Dataset.from_tensors(values)
    values[...] = -1
    assert np.array_equal(np.stack(list(views[0])), whole)
    assert np.array_equal(next(iter(views[1])), whole)


def test_a_memory_mapped_file_is_copied_batch_by_batch(tmp_path: Path) -> None:
    values = np.memmap(tmp_path / "values", np.float32, "w+", shape=(BATCHES * ROWS, WIDTH))
    values[...] = numbers()
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = list(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(values).batch(ROWS)))
    values[...] = -1
    assert [float(batch.values[1][0, 0]) for batch in batches] == list(range(BATCHES))


def test_a_cache_reads_batches_of_a_memory_mapped_file_as_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "values.npy", numbers())
    monkeypatch.setattr(ArraySource, "item", lambda self, index: pytest.fail("single elements are slow to stack"))
    dataset = Dataset.from_tensor_slices(np.load(tmp_path / "values.npy", mmap_mode="r")).cache().shuffle(8).batch(ROWS)
    for _ in range(2):
        assert sorted(row.tolist() for batch in dataset for row in batch) == sorted(numbers().tolist())


@pytest.mark.parametrize("mode", ["r+", "c", "r"])
@pytest.mark.parametrize("size", [None, ROWS])
def test_elements_of_a_memory_mapped_file_are_read_only(tmp_path: Path, mode: Any, size: int | None) -> None:
    """A function that writes to them would change the file, and so the next epoch."""
    np.save(tmp_path / "values.npy", numbers())
    values = np.load(tmp_path / "values.npy", mmap_mode=mode)
    rows = Dataset.from_tensor_slices({"x": values})
    dataset = (rows if size is None else rows.batch(size)).map(lambda row: row["x"].__imul__(2))
    with pytest.raises(ValueError, match="read-only") as raised:
        list(dataset)
    assert "modify a copy" in str(raised.value.__notes__)
    assert np.array_equal(np.load(tmp_path / "values.npy"), numbers())
    assert values.flags.writeable is (mode != "r")


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.from_tensor_slices(numbers()),
        Dataset.from_tensor_slices(numbers()).batch(ROWS),
        Dataset.from_tensors(numbers()),
        Dataset.from_generator(Refilling).cache(),
        Dataset.range(BATCHES).map(lambda n: np.full(WIDTH, n)).cache(),
    ],
    ids=["rows", "batches", "tensors", "cached stream", "cached"],
)
def test_functions_and_loops_cannot_change_what_a_dataset_keeps(dataset: Dataset) -> None:
    def erase(x: np.ndarray) -> np.ndarray:
        x[...] = -1
        return x

    before = [element.tolist() for element in dataset]
    with pytest.raises(ValueError, match="read-only") as raised:
        list(dataset.map(erase))
    assert any("modify a copy" in note for note in raised.value.__notes__)
    for element in dataset:
        with pytest.raises(ValueError, match="read-only"):
            element[...] = -1
    assert [element.tolist() for element in dataset] == before


def dicts() -> Dataset:
    return Dataset.range(1, 4).map(lambda n: {"x": n, "y": {"z": [n]}})


def every(_: object) -> bool:
    return True


@pytest.mark.parametrize(
    "dataset",
    [
        dicts().cache(),
        dicts().filter(every).cache(),
        dicts().filter(every).cache().shuffle(3, seed=0),
        dicts().take(1).cache().repeat(3),
        Dataset.from_tensors({"x": 1, "y": {"z": np.ones(1, np.int64)}}),
        Dataset.from_tensors({"x": 1, "y": {"z": np.ones(1, np.int64)}}).cache().repeat(3),
    ],
    ids=["cached", "cached stream", "cached stream, shuffled", "cached, repeated", "tensors", "tensors, repeated"],
)
def test_functions_and_loops_that_change_dicts_do_not_change_what_a_dataset_keeps(dataset: Dataset) -> None:
    """They changed the elements of the next epoch, too."""

    def change(features: dict[str, Any]) -> dict[str, Any]:
        features["x"] = features["x"] * 10
        features["y"].pop("z")
        return features

    before = sorted(int(element["x"]) for element in dataset)
    for _ in range(2):
        assert sorted(int(element["x"]) for element in dataset.map(change)) == [10 * n for n in before]
        assert sorted(int(change(element)["x"]) for element in dataset) == [10 * n for n in before]
        assert sorted(int(element["x"]) for element in dataset) == before


def test_two_uses_of_a_cache_in_one_dataset_have_dicts_of_their_own() -> None:
    cached = dicts().cache()
    both = Dataset.zip((cached.map(lambda one: one.pop("x")), cached))
    assert [(int(x), int(one["x"])) for x, one in both] == [(1, 1), (2, 2), (3, 3)]


def test_a_window_that_is_read_twice_has_dicts_of_its_own() -> None:
    def twice(_: object, window: Dataset) -> Dataset:
        return window.map(lambda one: one.pop("x")).concatenate(window.map(lambda one: one["x"]))

    windows = dicts().filter(every).group_by_window(lambda _: 0, twice, 3)
    assert [int(x) for x in windows] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    "windows",
    [
        lambda rows, of: rows.window(2).flat_map(of),
        lambda rows, of: rows.map(lambda x: {"x": x}).window(2).flat_map(lambda window: of(window["x"])),
        lambda rows, of: rows.group_by_window(lambda x: np.int64(0), lambda key, window: of(window), 2),
    ],
    ids=["window", "window of a dict", "group_by_window"],
)
def test_a_window_that_is_read_twice_has_the_same_elements(windows: Callable[..., Dataset]) -> None:
    def add(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    rows = Dataset.range(4).map(lambda n: np.full(2, n))
    with pytest.raises(ValueError, match="read-only"):
        list(windows(rows, lambda window: window.repeat(2).map(add)))
    found = [float(x[0]) for x in windows(rows, lambda window: window.repeat(2).map(lambda one: one + 1))]
    assert found == [1, 2, 1, 2, 3, 4, 3, 4]


def test_a_scan_begins_every_epoch_with_its_initial_state() -> None:
    def add(state: np.ndarray, number: Any) -> tuple[np.ndarray, np.ndarray]:
        state += number
        return state, state

    start = np.zeros(1, np.int64)
    dataset = Dataset.range(4).scan(start, add).batch(4)
    assert [batch.tolist() for batch in dataset] == [[[0], [1], [3], [6]]]
    assert [batch.tolist() for batch in dataset] == [[[0], [1], [3], [6]]]
    assert start.tolist() == [0]


def test_donated_batches_leave_the_dataset_as_it_is() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"])
    distributed = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(numbers()).batch(ROWS))
    erase = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    for batch in distributed:
        erase(batch).block_until_ready()
    assert [float(batch[0, 0]) for batch in distributed] == list(range(BATCHES))


# Arrays that a program passes itself

LARGE = (1500, 1000)


@pytest.fixture(params=[(ROWS, WIDTH), LARGE], ids=["small", "large"])
def shape(request: Any) -> tuple[int, ...]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=[0, 4], ids=["aligned", "unaligned"])
def one(request: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of ones, which the test refills with fives."""
    array = buffer(shape, request.param)
    array[...] = 1
    return array


def is_one(value: Any) -> bool:
    return all(bool(np.all(np.asarray(part) == 1)) for part in parts_of(value))


@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.first(17)
def test_arguments_of_a_step(way: Any, one: np.ndarray) -> None:
    v = None
    with way.strategy.scope():
        v = mr.Variable(jnp.zeros(one.shape))

    @way.compile
    def step(x: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            v.assign(x)
            return x, jnp.add(y, 0)

        return way.strategy.run(replica, args=(x,), kwargs={"y": x})

    for _ in range(3):
        one[...] = 1
        results = step(one)
        one[...] = 5
        assert all(is_one(result) for result in jax.tree.leaves(results, is_leaf=lambda leaf: hasattr(leaf, "values")))
        assert is_one(v.read_value())


@pytest.mark.long
def test_arguments_of_functions(one: np.ndarray) -> None:
    functions = [
        mr.function(lambda x: x),
        mr.function(lambda x: x + 0),
        mr.function(lambda x: x).get_concrete_function(one),
    ]
    for function in functions:
        one[...] = 1
        results = [function(one), function(read_only(one))]
        one[...] = 5
        assert all(is_one(result) for result in results)
    one[...] = 1
    steps = mr.function(lambda x: x, steps_per_call=2)
    found = steps([(one,), (one,)])
    one[...] = 5
    assert is_one(found)


def test_a_strategy_does_not_write_to_its_arguments() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica(x: np.ndarray) -> None:
        x[...] = 1

    with pytest.raises(ValueError, match="read-only"):
        strategy.run(replica, args=(np.zeros(3),))


@pytest.mark.first(1)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("synchronization", ["NONE", "ON_READ"])
def test_variables(one: np.ndarray, devices: int, synchronization: str) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    options: dict[str, Any] = {}
    if synchronization == "ON_READ":
        options = {
            "synchronization": mr.VariableSynchronization.ON_READ,
            "aggregation": mr.VariableAggregation.MEAN,
        }
    zeros = np.zeros(one.shape, np.float32)
    with strategy.scope():
        made = [
            mr.Variable(one, **options),
            mr.Variable(lambda: one, **options),
            mr.Variable(read_only(one), **options),
        ]
        assigned, added, taken = (mr.Variable(zeros, **options) for _ in range(3))
    assigned.assign(one)
    added.assign_add(one)
    taken.assign_sub(-one)
    one[...] = 5
    for variable in (*made, assigned, added, taken):
        assert is_one(variable.numpy())
    plain = mr.Variable(zeros)
    one[...] = 1
    plain.assign(one)
    one[...] = 5
    assert is_one(plain.numpy())


@pytest.mark.parametrize("devices", [1, 2])
def test_values_from_a_function(one: np.ndarray, devices: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])

    def refilled(context: Any) -> np.ndarray:
        one[...] = context.replica_id_in_sync_group
        return one

    value = strategy.experimental_distribute_values_from_function(refilled)
    one[...] = 5
    assert [float(np.max(part)) for part in strategy.experimental_local_results(value)] == list(range(devices))


@pytest.mark.first(1)
@pytest.mark.parametrize("devices", [1, 2])
def test_reductions_and_losses(one: np.ndarray, devices: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    reduced = strategy.reduce("MEAN", one, axis=None)
    gathered = strategy.gather(one, axis=0) if devices == 1 else reduced
    one[...] = 5
    assert is_one(reduced)
    assert is_one(gathered)
    one[...] = 1
    losses = [mr.losses.average_loss(one.reshape(-1)), mr.losses.average_loss(jnp.ones(one.size), one.reshape(-1))]
    one[...] = 5
    assert [float(loss) for loss in losses] == [1.0, 1.0]


def test_gradients(one: np.ndarray) -> None:
    v = mr.Variable(np.zeros(one.shape, np.float32))
    optimizer = mr.optimizers.SGD(1.0)
    optimizer.apply_gradients([(-one, v)])
    one[...] = 5
    assert is_one(v.numpy())


@pytest.mark.long
def test_a_restored_variable_does_not_see_the_file(tmp_path: Path, one: np.ndarray) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(one)
    held = {"array": one}
    checkpoint = mr.checkpoint.Checkpoint(v=v, held=held)
    path = checkpoint.write(tmp_path / "checkpoint")
    one[...] = 5
    v.assign(one)
    checkpoint.read(path)
    held["array"][...] = 7
    assert is_one(v.numpy())
