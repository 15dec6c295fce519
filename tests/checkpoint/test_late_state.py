"""State that the program creates after a restore: what is restored then, and how the rest is reported."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointReader
from mirrored.checkpoint.memory import begin_snapshot, refuse_late_state, restore_snapshot
from mirrored.errors import CheckpointMismatchError


class Counting:
    """An iterator of another library."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.position += 1
        return self.position - 1

    def get_state(self) -> int:
        return self.position

    def set_state(self, state: int) -> None:
        self.position = state


class Trainer:
    """Creates its state at its first use."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.state: Any = None

    def first(self, make: Callable[[], Any]) -> Any:
        if self.state is None:
            self.state = make()
        return self.state


def dataset_iterator() -> Any:
    return iter(mr.data.Dataset.range(20))


def distributed_iterator() -> Any:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    return iter(strategy.experimental_distribute_dataset(mr.data.Dataset.range(40).batch(2)))


def read(iterator: Any) -> int:
    """Reads an element, and returns the number of elements before it."""
    element = next(iterator)
    return int(element.values[0][0]) // 2 if isinstance(element, mr.PerReplica) else int(element)


def restored(how: str, saved: Checkpoint, other: Checkpoint, folder: Path) -> None:
    if how == "memory":
        restore_snapshot(other, begin_snapshot(saved).finish())
    else:
        other.restore(saved.write(folder / "c")).expect_partial()


@pytest.mark.parametrize("how", ["restore", "memory"])
@pytest.mark.parametrize("make", [dataset_iterator, distributed_iterator])
@pytest.mark.parametrize("place", ["attribute", "dict", "list"])
def test_an_iterator_that_comes_later_continues(how: str, make: Callable[[], Any], place: str, tmp_path: Path) -> None:
    """It began anew, silently, unless it was assigned through the checkpoint."""

    def begun() -> tuple[Checkpoint, Any]:
        trainer, by_name, parts = Trainer(), dict[str, Any](), list[Any]()

        def put(iterator: Any) -> None:
            if place == "attribute":
                trainer.state = iterator
            elif place == "dict":
                by_name["a"] = iterator
            else:
                parts.append(iterator)

        return Checkpoint(trainer=trainer, by_name=by_name, parts=parts, step=0), put

    first, put = begun()
    before = make()
    put(before)
    assert [read(before) for _ in range(3)] == [0, 1, 2]
    second, put = begun()
    restored(how, first, second, tmp_path)
    after = make()
    put(after)
    assert [read(after) for _ in range(2)] == [3, 4]


@pytest.mark.parametrize("saves", ["write", "snapshot", "status"])
def test_an_iterator_that_is_not_read_yet_is_restored_before_a_save(saves: str, tmp_path: Path) -> None:
    trainer = Trainer()
    [next(trainer.first(dataset_iterator)) for _ in range(3)]
    path = Checkpoint(trainer=trainer, step=1).write(tmp_path / "c")
    checkpoint = Checkpoint(trainer=(trainer := Trainer()), step=0)
    status = checkpoint.restore(path)
    iterator = trainer.first(dataset_iterator)
    if saves == "write":
        found = CheckpointReader(checkpoint.write(tmp_path / "d")).read("trainer/state")["position"]
        assert found == {"next_index": 3}
    elif saves == "snapshot":
        begin_snapshot(checkpoint)
    else:
        assert status.unexpected == ()
    assert next(iterator) == 3


def test_an_iterator_whose_position_the_program_sets_stays_there(tmp_path: Path) -> None:
    trainer = Trainer()
    [next(trainer.first(dataset_iterator)) for _ in range(3)]
    path = Checkpoint(trainer=trainer, step=1).write(tmp_path / "c")
    Checkpoint(trainer=(other := Trainer()), step=0).restore(path).expect_partial()
    next(trainer.state)
    other.first(dataset_iterator).set_state(trainer.state.get_state())
    assert next(other.state) == 4


@pytest.mark.parametrize("make", [lambda: np.random.default_rng(0), Counting])
def test_an_elastic_session_refuses_state_that_comes_too_late(make: Callable[[], Any]) -> None:
    """Examples and random numbers were used twice, silently."""
    trainer = Trainer()
    trainer.first(make)
    manifest = begin_snapshot(Checkpoint(trainer=trainer, step=1)).finish()
    checkpoint = Checkpoint(trainer=(trainer := Trainer()), step=0)
    restore_snapshot(checkpoint, manifest)
    begin_snapshot(checkpoint)
    trainer.first(make)
    for check in (begin_snapshot, refuse_late_state):
        with pytest.raises(CheckpointMismatchError, match=r"Session.commit: the program has created trainer/state "):
            check(checkpoint)


def test_an_elastic_session_accepts_state_that_is_assigned_through_the_checkpoint() -> None:
    generator = np.random.default_rng(0)
    generator.random(3)
    checkpoint = Checkpoint(step=0)
    restore_snapshot(checkpoint, begin_snapshot(Checkpoint(generator=generator, step=1)).finish())
    checkpoint.generator = np.random.default_rng(0)
    assert checkpoint.generator.random() == generator.random()
    refuse_late_state(checkpoint)
    begin_snapshot(checkpoint)


def test_a_save_warns_once_of_state_that_came_too_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fill(trainer: Trainer) -> None:
        trainer.first(lambda: np.random.default_rng(0))
        trainer.made["array"] = np.zeros(2)

    fill(first := Trainer())
    path = Checkpoint(trainer=first, step=1).write(tmp_path / "c")
    checkpoint = Checkpoint(trainer=(trainer := Trainer()), step=0)
    status = checkpoint.restore(path)
    fill(trainer)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        for name in ("d", "e"):
            checkpoint.write(tmp_path / name)
    assert caplog.text.count("the program has created trainer/state, trainer/made/array after the restore") == 1
    assert "(created too late to be restored)" in status.report
    assert "is it" not in status.report
    status.expect_partial()


@pytest.mark.parametrize("make", [lambda: Counter(a=3), lambda: {"a": 3}])
def test_the_remedy_for_numbers_in_a_container_is_to_create_it_before(
    make: Callable[[], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning advised to assign the container as a part of the checkpoint, which the program had done."""
    path = Checkpoint(counts=make(), step=1).write(tmp_path / "c")
    checkpoint = Checkpoint(step=0)
    checkpoint.restore(path).expect_partial()
    checkpoint.counts = Counter()
    checkpoint.counts["a"] += 1
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        checkpoint.write(tmp_path / "d")
    assert "counts/a after the restore" in caplog.text
    assert "such a container must exist before the restore" in caplog.text
    created = Checkpoint(step=0, counts=Counter())
    created.restore(path)
    assert created.counts["a"] == 3


def test_entries_of_a_list_are_not_too_late(caplog: pytest.LogCaptureFixture) -> None:
    history: list[Any] = []
    first = Checkpoint(history=history, losses=[1.0, 2.0], step=1)
    history += [{"loss": 1.0}, {"loss": 2.0}]
    checkpoint = Checkpoint(history=(history := []), losses=(losses := []), step=0)
    restore_snapshot(checkpoint, begin_snapshot(first).finish())
    history.append({"loss": 3.0})
    losses.append(3.0)
    with caplog.at_level(logging.WARNING, "mirrored.checkpoint"):
        begin_snapshot(checkpoint)
    assert "the program has created" not in caplog.text
