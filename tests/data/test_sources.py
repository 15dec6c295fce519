"""The datasets of other libraries that can be distributed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.errors import ArgumentError, InputError, StructureError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def strategy() -> Any:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def shown(elements: Any) -> list[Any]:
    return [[np.asarray(share).tolist() for share in element.values] for element in elements]


HALVES = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]


def grain_map() -> Any:
    return grain.MapDataset.range(9).batch(4)


def grain_loader() -> Any:
    sampler = grain.samplers.IndexSampler(8, num_epochs=1, shuffle=False, shard_options=grain.sharding.NoSharding())
    return grain.DataLoader(
        data_source=np.arange(8), sampler=sampler, operations=[grain.transforms.Batch(4)], worker_count=0
    )


class Reiterable:
    def __iter__(self) -> Iterator[Any]:
        yield from (np.arange(0, 4), np.arange(4, 8), np.arange(8, 9))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.range(9).batch(4),
        grain_map,
        lambda: grain_map().to_iter_dataset(),
        lambda: [np.arange(0, 4), np.arange(4, 8), np.arange(8, 9)],
        lambda: [[0, 1, 2, 3], [4, 5, 6, 7], [8]],
        Reiterable,
    ],
    ids=["ours", "grain map", "grain iter", "list of arrays", "list of lists", "re-iterable"],
)
def test_batches_are_split_and_read_again(strategy: Any, make: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(make())
    assert shown(distributed) == HALVES
    assert shown(distributed) == HALVES


def test_grain_data_loader(strategy: Any) -> None:
    assert shown(strategy.experimental_distribute_dataset(grain_loader())) == HALVES[:2]


@pytest.mark.parametrize("make", [grain_map, lambda: grain_map().to_iter_dataset(), grain_loader, Reiterable])
def test_foreign_positions(strategy: Any, make: Any) -> None:
    reading = iter(strategy.experimental_distribute_dataset(make()))
    next(reading)
    state = json.loads(json.dumps(reading.get_state()))
    rest = shown(reading)
    elsewhere = iter(strategy.experimental_distribute_dataset(make()))
    elsewhere.set_state(state)
    assert shown(elsewhere) == rest


def test_a_grain_position_with_other_batches(strategy: Any) -> None:
    reading = iter(strategy.experimental_distribute_dataset(grain_map()))
    next(reading)
    other = iter(strategy.experimental_distribute_dataset(grain.MapDataset.range(9).batch(3)))
    other.set_state(reading.get_state())
    assert shown(other) == [[[4], [5]], [[6, 7], [8]]]


def test_a_loader_that_saves_its_own_position_is_asked_for_it(strategy: Any) -> None:
    class Stateful:
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Iterator[Any]:
            while self.place < 3:
                self.place += 1
                yield np.arange(4) + 10 * self.place

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]

    reading = iter(strategy.experimental_distribute_dataset(Stateful(), InputOptions(prefetch=0)))
    next(reading)
    elsewhere = iter(strategy.experimental_distribute_dataset(Stateful()))
    elsewhere.set_state(reading.get_state())
    assert shown(elsewhere) == [[[20, 21], [22, 23]], [[30, 31], [32, 33]]]


def test_a_position_of_a_loader_that_returns_its_own_dict(strategy: Any) -> None:
    class Live:
        def __init__(self) -> None:
            self.state = {"place": 0}

        def __iter__(self) -> Iterator[Any]:
            while self.state["place"] < 8:
                self.state["place"] += 1
                yield np.full(4, self.state["place"])

        def state_dict(self) -> dict[str, int]:
            return self.state

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.state = state

    reading = iter(strategy.experimental_distribute_dataset(Live()))
    next(reading)
    position = reading.get_state()
    list(reading)  # as reading ahead does
    for _ in range(2):
        elsewhere = iter(strategy.experimental_distribute_dataset(Live()))
        elsewhere.set_state(position)
        assert shown(elsewhere)[0] == [[2, 2], [2, 2]]


def test_arrays_with_a_batch_size(strategy: Any) -> None:
    arrays = {"x": np.arange(9), "y": np.arange(9) * 2}
    elements = list(strategy.experimental_distribute_dataset(arrays, InputOptions(batch_size=4)))
    assert shown(element["x"] for element in elements) == HALVES


@pytest.mark.parametrize(
    "make", [lambda: Dataset.range(9).batch(4), grain_map, grain_loader, lambda: [np.arange(4)] * 2, Reiterable]
)
def test_a_batch_size_for_batches_is_refused(strategy: Any, make: Any) -> None:
    for distribute in (
        strategy.experimental_distribute_dataset,
        lambda data, options: strategy.distribute_datasets_from_function(lambda _: data, options),
    ):
        with pytest.raises(ArgumentError, match="batch_size applies to sources of single examples"):
            distribute(make(), InputOptions(batch_size=8))


def test_lists_of_arrays_are_structures_as_in_pytorch_collation(strategy: Any) -> None:
    batches = [[np.zeros((4, 2)), np.arange(4)]]
    features, labels = next(iter(strategy.experimental_distribute_dataset(batches)))
    assert features.component_shape == (2, 2)
    assert shown([labels]) == [[[0, 1], [2, 3]]]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_lists_of_a_grain_dataset_are_structures(strategy: Any, is_lazy: bool) -> None:
    """Stacked into one array, they would be a batch of two examples, of which each replica gets one."""
    data = grain.MapDataset.range(8).map(lambda n: [n, -n]).batch(4)
    batches = list(strategy.experimental_distribute_dataset(data.to_iter_dataset() if is_lazy else data))
    assert shown(x for x, _ in batches) == HALVES[:2]
    assert shown(y for _, y in batches) == [[[0, -1], [-2, -3]], [[-4, -5], [-6, -7]]]


def test_lists_of_numbers_of_a_grain_dataset_are_arrays(strategy: Any) -> None:
    data = grain.MapDataset.source([[0, 1, 2, 3], [4, 5, 6, 7]])
    assert shown(strategy.experimental_distribute_dataset(data)) == HALVES[:2]


def test_what_is_no_array_is_refused(strategy: Any) -> None:
    with pytest.raises((InputError, TypeError, ValueError), match="arrays"):
        list(strategy.experimental_distribute_dataset([{"x": object()}]))


@pytest.mark.chaos
@pytest.mark.multiprocess
def test_a_dead_grain_worker_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, time
        import grain, numpy as np
        from absl import flags
        import mirrored as mr

        class Source:
            def __len__(self): return 4000
            def __getitem__(self, i):
                time.sleep(0.005)
                return np.int64(i)

        def children():
            found = []
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    text = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
                    command = open(f"/proc/{pid}/cmdline").read()
                except OSError:
                    continue
                if int(text[1]) == os.getpid() and "resource_tracker" not in command and text[0] != "Z":
                    found.append(int(pid))
            return found

        if __name__ == "__main__":
            flags.FLAGS.mark_as_parsed()
            rows = grain.MapDataset.source(Source()).batch(4).to_iter_dataset()
            data = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1))
            strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            try:
                for count, element in enumerate(strategy.experimental_distribute_dataset(data)):
                    if count == 5:
                        for pid in children():
                            os.kill(pid, signal.SIGKILL)
                print("ended quietly")
            except Exception as error:
                print("ERROR", type(error).__name__, error, *error.__notes__)
            time.sleep(0.5)
            print("left", len(children()))
        """
    )
    path = tmp_path / "program.py"  # a file, since Grain's workers import the main program again
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=55, check=False, env=environment
    )
    assert ended.returncode not in (-signal.SIGKILL, 134), ended.stderr
    assert "ERROR" in ended.stdout, ended.stdout + ended.stderr[-3000:]
    assert "Grain: at element" in ended.stdout
    assert "left 0" in ended.stdout


class Tensor:
    """A stand-in for the parts of `torch.Tensor` that are used."""

    def __init__(self, values: Any) -> None:
        self.shape, self._values = np.shape(values), np.asarray(values)

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> Any:
        return self._values


Tensor.__module__ = "torch"


def test_tensors_of_pytorch_become_arrays(strategy: Any) -> None:
    loader = [[Tensor([[0.0], [1.0], [2.0], [3.0]]), {"y": Tensor([0, 1, 2, 3])}]]
    features, labels = next(iter(strategy.experimental_distribute_dataset(loader)))
    assert shown([features, labels["y"]]) == [[[[0.0], [1.0]], [[2.0], [3.0]]], HALVES[0]]


class HuggingFace:
    """A stand-in for the parts of `datasets.Dataset` that are used."""

    def with_format(self, kind: str) -> HuggingFace:
        assert kind == "numpy"
        return self

    def iter(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, 9, batch_size):
            yield {"id": np.arange(start, min(start + batch_size, 9))}


HuggingFace.__module__ = "datasets.arrow_dataset"


def test_datasets_of_hugging_face_with_a_batch_size(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(HuggingFace(), InputOptions(batch_size=4))
    assert shown(element["id"] for element in distributed) == HALVES


def test_columns_of_texts_are_bytes() -> None:
    class Column:  # as of a pandas table
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.array(["a", "bc"], object)

    rows = list(Dataset.from_tensor_slices({"name": Column(), "n": [1, 2]}))
    assert [row["name"] for row in rows] == [b"a", b"bc"]
    with pytest.raises(StructureError, match="a leaf is of type list"):
        Dataset.from_tensors((["a", None], 1))
