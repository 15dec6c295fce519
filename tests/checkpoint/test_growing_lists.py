"""Lists of numbers to which a program appends, such as a history of losses."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.elastic.snapshots import packed, unpacked
from mirrored.errors import CheckpointMismatchError


def program(history: list[Any] | None = None) -> Checkpoint:
    return Checkpoint(v=mr.Variable(0.0), history=[] if history is None else history)


@pytest.mark.parametrize("how", ["restore", "restore_latest", "memory"])
@pytest.mark.parametrize("begins_with", [[], [7.0]])
def test_a_history_is_continued(how: str, begins_with: list[float], tmp_path: Path) -> None:
    """It stayed empty, and the next checkpoint mixed new numbers with old ones."""
    first = program([3.0, 2.0, 1.5])
    manager = CheckpointManager(first, tmp_path)
    manager.save(1)
    manager.wait()
    history = list(begins_with)
    second = program(history)
    if how == "restore":
        second.restore(manager.latest_checkpoint).assert_consumed()
    elif how == "restore_latest":
        CheckpointManager(second, tmp_path).restore_latest()
    else:
        restore_snapshot(second, begin_snapshot(first).finish())
    assert second.history == history == [3.0, 2.0, 1.5]
    second.history.append(1.0)
    reader = CheckpointReader(second.save(tmp_path / "next"))
    assert [reader.read(f"history/{n}") for n in range(4)] == [3.0, 2.0, 1.5, 1.0]
    assert "history/4" not in reader.names


def test_histories_in_dicts_and_objects_are_continued(tmp_path: Path) -> None:
    class Log:
        def __init__(self) -> None:
            self.losses: list[float] = []

    first = Checkpoint(histories={"loss": [1.0, 2.0], "accuracy": [0.5]}, log=Log())
    first.log.losses += [4.0, 5.0]
    second = Checkpoint(histories={"loss": [], "accuracy": []}, log=Log())
    second.restore(first.save(tmp_path / "c")).assert_consumed()
    assert second.histories == {"loss": [1.0, 2.0], "accuracy": [0.5]}
    assert second.log.losses == [4.0, 5.0]


@pytest.mark.parametrize(
    ("saved", "restored"), [("trainer", "both"), ("history", "both"), ("both", "trainer"), ("both", "history")]
)
def test_a_history_is_continued_under_another_path(saved: str, restored: str, tmp_path: Path) -> None:
    """Only a list with the name in the checkpoint was continued."""

    def parts(which: str, history: list[float]) -> Checkpoint:
        trainer = Trainer()
        trainer.history = history
        given = {"trainer": {"trainer": trainer}, "history": {"history": history}}
        return Checkpoint(v=mr.Variable(0.0), **given.get(which, given["trainer"] | given["history"]))

    path = parts(saved, [3.0, 2.0]).save(tmp_path / "c")
    history: list[float] = []
    parts(restored, history).restore(path).assert_existing_objects_matched()
    assert history == [3.0, 2.0]


class Trainer:
    history: list[float]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_deque_is_continued(is_damaged: bool, tmp_path: Path) -> None:
    path = Checkpoint(v=mr.Variable(1.0), rewards=deque([3.0, 2.0, 1.0], maxlen=4)).save(tmp_path / "c")
    rewards = deque([9.0], maxlen=4)
    second = Checkpoint(v=mr.Variable(np.zeros(2) if is_damaged else 0.0), rewards=rewards)
    if is_damaged:
        with pytest.raises(CheckpointMismatchError):
            second.restore(path)
        assert list(rewards) == [9.0]
        return
    second.restore(path).assert_consumed()
    rewards.extend([0.5, 0.25])
    assert list(rewards) == [2.0, 1.0, 0.5, 0.25]
    shorter: deque[float] = deque(maxlen=2)
    with pytest.raises(CheckpointMismatchError, match="rewards/2"):
        Checkpoint(v=mr.Variable(0.0), rewards=shorter).restore(path).assert_consumed()
    assert list(shorter) == [3.0, 2.0]


def test_lists_of_other_things_and_of_configuration_do_not_grow(tmp_path: Path) -> None:
    class Model:
        def __init__(self, widths: list[int]) -> None:
            self.w, self.widths = mr.Variable(1.0), widths

    first = Checkpoint(arrays=[jnp.ones(1), 2.0], model=Model([1, 2, 3]), log=[1, 2])
    second = Checkpoint(arrays=[jnp.zeros(1)], model=Model([]), log=[jnp.zeros(1)])
    with pytest.raises(CheckpointMismatchError):
        second.restore(first.save(tmp_path / "c"))
    assert len(second.arrays) == len(second.log) == 1
    assert second.model.widths == []


def test_an_error_leaves_lists_as_they_were(tmp_path: Path) -> None:
    path = Checkpoint(history=[1.0, 2.0], w=jnp.ones(2)).save(tmp_path / "c")
    history: list[float] = [0.0]
    with pytest.raises(CheckpointMismatchError):
        Checkpoint(history=history, w=jnp.ones(3)).restore(path)
    assert history == [0.0]


def test_a_list_that_comes_after_the_restore_is_not_mixed_with_saved_numbers(tmp_path: Path) -> None:
    path = program([3.0, 2.0, 1.5]).save(tmp_path / "c")
    checkpoint = Checkpoint(v=mr.Variable(0.0))
    checkpoint.restore(path).expect_partial()
    checkpoint.history = []
    checkpoint.history.append(1.0)
    names = CheckpointReader(checkpoint.save(tmp_path / "c")).names
    assert [name for name in names if "history" in name] == ["history/0"]


@dataclasses.dataclass
class Record:
    epoch: int
    loss: float


ENTRIES: dict[str, Callable[[int], Any]] = {
    "dict": lambda at: {"epoch": at, "loss": 1.0 / at, "note": "text", "matrix": np.full(2, at)},
    "tuple": lambda at: (at, 1.0 / at),
    "list": lambda at: [at, [1.0 / at]],
    "dataclass": lambda at: Record(at, 1.0 / at),
    "jax": jnp.float32,
    "numpy": np.array,
}


def add(checkpoint: Checkpoint, own: list[Any], entry: object, how: str) -> None:
    if how == "append":
        checkpoint.history.append(entry)
    elif how == "add":
        checkpoint.history += [entry]
    elif how == "insert":
        checkpoint.history.insert(len(own), entry)
    elif how == "assign":
        checkpoint.history = [*checkpoint.history, entry]
    else:
        own.append(entry)


@pytest.mark.first(7)
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, how) for kind in ENTRIES for how in ("append", "own")),
        *(("dict", how) for how in ("add", "insert", "assign")),
    ],
)
def test_entries_that_are_no_numbers_keep_the_values_of_the_program(
    kind: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They got those of the first entries in the checkpoint, or the next checkpoint mixed the entries of two runs."""
    entry = ENTRIES[kind]
    path = program([entry(at) for at in range(1, 5)]).save(tmp_path / "c")
    own: list[Any] = []
    second = program(own)
    second.restore(path).expect_partial()
    for at in (5, 6):
        add(second, own, entry(at), how)
    assert str(list(second.history)) == str([entry(5), entry(6)])
    new = program([entry(5), entry(6)]).save(tmp_path / "new")
    assert CheckpointReader(second.save(tmp_path / "c")).names == CheckpointReader(new).names
    second.save(tmp_path / "c")
    assert str(list(second.history)) == str([entry(5), entry(6)])
    assert caplog.text.count("has entries in history that a restore does not continue") == 1


def test_parameters_in_lists_are_restored_and_not_lost(tmp_path: Path) -> None:
    class Layer(mr.tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.units = 2

        def build(self, value: float) -> Layer:
            self.w = mr.Variable(value)
            return self

    path = Checkpoint(
        step=1, layers=[Layer().build(1.0), Layer().build(2.0)], arrays=[{"w": np.full(2, 3.0)}, {"w": np.full(2, 4.0)}]
    ).save(tmp_path / "c")
    second = Checkpoint(step=0, layers=[Layer()], arrays=[])
    second.restore(path).expect_partial()
    second.arrays.append({"w": np.zeros(2)})
    np.testing.assert_array_equal(second.arrays[0]["w"], [3.0, 3.0])
    names = CheckpointReader(second.save(tmp_path / "c")).names
    assert {"layers/0/w", "layers/1/w", "arrays/1/w"} <= set(names)
    second.layers[0].build(0.0)
    second.layers.append(Layer().build(0.0))
    assert [float(layer.w.numpy()) for layer in second.layers] == [1.0, 2.0]


@pytest.mark.parametrize("how", ["restore", "memory"])
@pytest.mark.parametrize("place", ["part", "attribute", "alias"])
def test_counts_are_continued(how: str, place: str, tmp_path: Path) -> None:
    """A counter began anew, silently: it has no items before the program counts."""

    def begun() -> tuple[Checkpoint, Counter[Any], defaultdict[Any, Any]]:
        counts, sums, trainer = Counter[Any](), defaultdict[Any, Any](float), Trainer()
        trainer.history = []
        vars(trainer).update(counts=counts, sums=sums)
        parts = {"counts": counts, "sums": sums} if place == "part" else {"trainer": trainer}
        if place == "alias":
            parts = {"counts": counts, "sums": sums, "trainer": trainer}
        return Checkpoint(v=mr.Variable(0.0), **parts), counts, sums

    first, counts, sums = begun()
    counts.update({"even/odd": 3, 7: 2, "7a": 1})
    sums["loss"] += 0.5
    second, counts, sums = begun()
    counts[7] = 1
    counts["own"] = 4
    if how == "restore":
        status = second.restore(first.write(tmp_path / "c"))
        assert status.unexpected == ()
        status.expect_partial()
    else:
        head, parts = packed(begin_snapshot(first).finish())
        restore_snapshot(second, unpacked(head, np.concatenate(parts)))
    assert counts == {"even/odd": 3, 7: 2, "7a": 1, "own": 4}
    assert sums == {"loss": 0.5}
    counts["even/odd"] += 1
    sums["loss"] += 0.5
    assert (counts["even/odd"], sums["loss"]) == (4, 1.0)


def test_a_restore_that_fails_adds_no_counts(tmp_path: Path) -> None:
    path = Checkpoint(v=mr.Variable(0.0), counts=Counter(a=1)).write(tmp_path / "c")
    counts = Counter[str]()
    with pytest.raises(CheckpointMismatchError):
        Checkpoint(v=mr.Variable([0.0]), counts=counts).restore(path)
    assert dict(counts) == {}


def test_counts_of_a_model_stay_configuration(tmp_path: Path) -> None:
    path = Checkpoint(counts=Counter(a=1), v=mr.Variable(0.0)).write(tmp_path / "c")
    model = Trainer()
    model.history = []
    vars(model).update(counts=Counter(b=2), w=mr.Variable(0.0))
    Checkpoint(model=model, v=mr.Variable(0.0)).restore(path).expect_partial()
    assert vars(model)["counts"] == {"b": 2}


@pytest.mark.parametrize("how", ["restore", "memory"])
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_empty_dicts_get_the_saved_numbers(how: str, kind: Any, tmp_path: Path) -> None:
    """A dict that the program fills while it trains was empty after the restore, and its numbers began anew."""

    def begun() -> tuple[Checkpoint, Any, Any]:
        best, trainer = kind(), Trainer()
        trainer.history = {"own": kind()}
        return Checkpoint(v=mr.Variable(0.0), best=best, begun=kind(a=0), trainer=trainer), best, trainer

    first, best, trainer = begun()
    best.update({"loss/mean": 0.5, 7: 2})
    trainer.history["own"]["b"] = 3
    first.begun["z"] = 4
    second, best, trainer = begun()
    if how == "restore":
        second.restore(first.write(tmp_path / "c")).expect_partial()
    else:
        head, parts = packed(begin_snapshot(first).finish())
        restore_snapshot(second, unpacked(head, np.concatenate(parts)))
    assert best == kind({"loss/mean": 0.5, 7: 2})
    assert list(best) == ["loss/mean", 7]
    assert trainer.history == {"own": kind(b=3)}
    assert second.begun == kind(a=0), "the program may have no such item any more"


def test_a_restore_that_fails_leaves_dicts_empty(tmp_path: Path) -> None:
    path = Checkpoint(v=mr.Variable(0.0), best={"a": 1}).write(tmp_path / "c")
    best: dict[str, int] = {}
    with pytest.raises(CheckpointMismatchError):
        Checkpoint(v=mr.Variable([0.0]), best=best).restore(path)
    assert best == {}
