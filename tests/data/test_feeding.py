"""Prefetching: overlap, order and errors, and no thread is left running after any kind of exit."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.errors import DataFileError, InputError, StructureError

pytestmark = pytest.mark.timeout(30)
INTERRUPTED = r"an interrupt, such as Ctrl-C[\s\S]*iterator\.set_state\(iterator\.get_state\(\)\)"


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(("mirrored-input", "grain"))]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert workers() == []


@pytest.fixture
def strategy() -> Any:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def slow(count: int, seconds: float = 0.003) -> Dataset:
    """Batches that take long enough for an input thread to pay off."""

    def late(x: Any) -> Any:
        time.sleep(seconds)
        return x

    return Dataset.range(2 * count).batch(2).map(late)


def firsts(elements: Any) -> list[int]:
    return [int(element.values[0][0]) for element in elements]


def test_a_worker_starts_when_batches_take_long(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(slow(30))
    assert firsts(distributed) == list(range(0, 60, 2))
    stats = distributed.stats()
    assert stats.uses_worker
    assert (stats.batches, stats.examples) == (30, 60)
    assert stats.map_seconds > 30 * 0.003 > stats.read_seconds


def test_no_worker_for_quick_batches_or_when_told_so(strategy: Any) -> None:
    for dataset, options in (
        (slow(10), InputOptions(prefetch=0)),
        (Dataset.range(20).batch(2), InputOptions(prefetch=0)),
    ):
        distributed = strategy.experimental_distribute_dataset(dataset, options)
        assert len(list(distributed)) == 10
        assert not distributed.stats().uses_worker


def test_input_overlaps_with_the_step(strategy: Any) -> None:
    step_seconds, steps = 0.010, 60
    distributed = strategy.experimental_distribute_dataset(slow(steps, 0.008))
    with iter(distributed) as reading:
        for _ in range(8):  # until the worker runs ahead
            next(reading)
            time.sleep(step_seconds)
        start = time.perf_counter()
        for _ in reading:
            time.sleep(step_seconds)
        took = time.perf_counter() - start
    alone = (steps - 8) * step_seconds
    both = alone + (steps - 8) * 0.008
    # The benchmark measures the overlap; on a busy test machine it is only told from "one after the other".
    assert took < (alone + both) / 2


def test_not_more_than_asked_for_is_read_ahead(strategy: Any) -> None:
    read = []

    def note(x: Any) -> Any:
        read.append(int(x[0]) // 2)
        time.sleep(0.002)
        return x

    dataset = Dataset.range(200).batch(2).map(note)
    with iter(strategy.experimental_distribute_dataset(dataset, InputOptions(prefetch=3))) as reading:
        for count in range(1, 12):
            next(reading)
            time.sleep(0.02)
            assert max(read) + 1 <= count + 4


WAYS_OUT: dict[str, Callable[[Any], None]] = {}


def way_out(function: Callable[[Any], None]) -> Callable[[Any], None]:
    WAYS_OUT[function.__name__] = function
    return function


@way_out
def to_the_end(distributed: Any) -> None:
    assert len(list(distributed)) == 30


@way_out
def by_break(distributed: Any) -> None:
    for count, _ in enumerate(distributed):
        if count == 9:
            break


@way_out
def by_an_exception(distributed: Any) -> None:
    def train() -> None:
        for count, _ in enumerate(distributed):
            if count == 9:
                raise ZeroDivisionError("diverged")

    with pytest.raises(ZeroDivisionError, match="diverged"):
        train()


@way_out
def by_control_c(distributed: Any) -> None:
    def train() -> None:
        for count, _ in enumerate(distributed):
            if count == 9:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()


@way_out
def by_dropping_the_iterator(distributed: Any) -> None:
    reading = iter(distributed)
    for _ in range(10):
        next(reading)
    del reading


@way_out
def by_a_with_block(distributed: Any) -> None:
    with iter(distributed) as reading:
        for _ in range(10):
            next(reading)


@way_out
def before_the_first_batch(distributed: Any) -> None:
    iter(distributed)


@pytest.mark.parametrize("name", sorted(WAYS_OUT))
def test_the_worker_is_gone_after_leaving(strategy: Any, name: str) -> None:
    distributed = strategy.experimental_distribute_dataset(slow(30))
    WAYS_OUT[name](distributed)
    if name not in ("before_the_first_batch",):
        assert distributed.stats().uses_worker
    assert workers() == []


@pytest.mark.long
def test_the_process_ends_while_a_reading_is_open() -> None:
    program = """
import time, numpy as np, mirrored as mr
from mirrored.data import Dataset
strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
dataset = Dataset.range(10000).map(lambda x: (time.sleep(0.002), x)[1], num_parallel_calls=2).batch(2).prefetch(2)
reading = iter(strategy.experimental_distribute_dataset(dataset))
for _ in range(8):
    next(reading)
print("done")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.parametrize("at", [0, 1, 3, 5])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_control_c_while_a_batch_is_read_ahead_is_raised_at_once(strategy: Any, at: int, prefetch: int) -> None:
    came = []

    def interrupted(x: Any) -> Any:
        if x[0] == 2 * at and not came:
            came.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return x

    dataset = Dataset.range(12).batch(2).map(interrupted)
    with iter(strategy.experimental_distribute_dataset(dataset, InputOptions(prefetch=prefetch))) as reading:
        found = list[int]()
        with pytest.raises(KeyboardInterrupt):
            found.extend(int(element.values[0][0]) for element in reading)
        taken = len(found)
        with pytest.raises(InputError, match=INTERRUPTED):
            found.extend(int(element.values[0][0]) for element in reading)
        with pytest.raises(InputError, match=INTERRUPTED):
            next(reading)
        assert len(found) == at
        assert (at > taken) == (prefetch > 0 and at > 0)
        reading.set_state(reading.get_state())
        assert found + firsts(reading) == list(range(0, 12, 2))


class TestErrors:
    @pytest.mark.parametrize("at", [0, 1, 7, 20])
    def test_arrive_in_their_turn_with_their_own_traceback(self, strategy: Any, at: int) -> None:
        def read_sensor(count: int) -> Iterator[Any]:
            for number in range(count):
                time.sleep(0.001)
                yield np.full(2, number)
            raise KeyError("broken sensor")

        distributed = strategy.experimental_distribute_dataset(Dataset.from_generator(lambda: read_sensor(at)))
        reading = iter(distributed)
        assert firsts(next(reading) for _ in range(at)) == list(range(at))
        with pytest.raises(KeyError, match="broken sensor") as caught:
            next(reading)
        assert "read_sensor" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert f"at element {at}" in "\n".join(caught.value.__notes__)

    def test_of_ragged_batches(self, strategy: Any) -> None:
        ragged = Dataset.range(1, 9).map(lambda n: np.zeros(n)).batch(2)
        with pytest.raises(StructureError, match=r"float64\[1\] in element 0 .* float64\[2\] in element 1"):
            list(strategy.experimental_distribute_dataset(ragged))

    def test_of_leaves_that_disagree(self, strategy: Any) -> None:
        dataset = Dataset.range(8).batch(4).map(lambda x: (x, x[:-1]))
        with pytest.raises(StructureError, match=r"element\[1\] has 3 examples, the leaves before it 4"):
            list(strategy.experimental_distribute_dataset(dataset))

    def test_of_a_file_that_vanishes(self, strategy: Any, tmp_path: Any) -> None:
        for name in "ab":
            (tmp_path / f"{name}.txt").write_text("1\n2\n")
        lines = Dataset.from_text_lines([tmp_path / "a.txt", tmp_path / "b.txt"])
        numbers = lines.map(lambda line: np.int32(line)).batch(2)
        reading = iter(strategy.experimental_distribute_dataset(numbers, InputOptions(prefetch=0)))
        next(reading)
        (tmp_path / "b.txt").unlink()
        with pytest.raises(DataFileError, match=r"b\.txt cannot be opened"):
            next(reading)

    def test_an_empty_dataset_has_no_step(self, strategy: Any) -> None:
        for rule in ("split", "pad", "drop"):
            options = InputOptions(last_batch=rule)  # type: ignore[arg-type]
            assert list(strategy.experimental_distribute_dataset(Dataset.range(0).batch(2), options)) == []
        assert list(strategy.experimental_distribute_dataset([])) == []


class TestStalls:
    def test_a_long_wait_is_reported_with_the_place(self, strategy: Any, caplog: pytest.LogCaptureFixture) -> None:
        def stuck_in_here(x: Any) -> Any:
            time.sleep(0.6 if x[0] == 16 else 0.002)
            return x

        dataset = Dataset.range(20).batch(2).map(stuck_in_here)
        options = InputOptions(prefetch=1, stall_seconds=0.2)
        with caplog.at_level(logging.WARNING, "mirrored.data"):
            assert len(list(strategy.experimental_distribute_dataset(dataset, options))) == 10
        assert "has waited more than 0.2 s for the next batch" in caplog.text
        assert "stuck_in_here" in caplog.text

    def test_a_step_that_mostly_waits_is_told_for_what(
        self, strategy: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mirrored.data.feed._WINDOW_SECONDS", 0.1)
        with caplog.at_level(logging.WARNING, "mirrored.data"):
            list(strategy.experimental_distribute_dataset(slow(30, 0.01)))
        (message,) = [record.getMessage() for record in caplog.records if "of the last" in record.getMessage()]
        assert "for input, mostly for map (read 0.0 s, map 0." in message
