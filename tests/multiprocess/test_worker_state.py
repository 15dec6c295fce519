"""State that differs between workers: a save warns of it, and positions in different data are kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.jobs import run
from mirrored.checkpoint import Checkpoint
from mirrored.data import Dataset
from mirrored.errors import CheckpointMismatchError

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]
BEGIN = "Checkpoint.save: state differs between workers: "
DIFFERING = {
    "number": "seen is 10 on worker 0 and 11 on worker 1",
    "numpy": "hist/h is [0 0] on worker 0 and [1 1] on worker 1",
    "jax": "params/w is [0. 0.] on worker 0 and [1. 1.] on worker 1",
    "key": "key is [0 0] on worker 0 and [0 1] on worker 1",
    "variable": "v is 0. on worker 0 and 1. on worker 1",
    "object": "log/lines is 3 on worker 0 and 4 on worker 1",
    "list": "losses/1 is 0.5 on worker 0 and 1.5 on worker 1; losses/2 is 1.5 on worker 0 and 2.5 on worker 1",
    "longer list": "losses/2 is absent on worker 0 and 1 on worker 1",
    "long list": "losses has 601 values, of which later ones differ",
    "sign": "zero is 0.0 on worker 0 and -0.0 on worker 1",
    "type": "step is 1 on worker 0 and 1.0 on worker 1",
    "absent": "audit is absent on worker 0 and a position on worker 1",
    "many": "a is 0 on worker 0 and 1 on worker 1; b is 0 on worker 0 and 1 on worker 1; "
    "c is 0 on worker 0 and 1 on worker 1; and 2 more",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("worker_state")
    return run("worker_state", [1, 1], folder / "logs", str(folder)), folder


def test_a_save_names_what_differs_between_workers(job):
    """Every worker got the values of worker 0 at the restore, without a warning."""
    for found in job[0]:
        expected = {name: [BEGIN + text] for name, text in DIFFERING.items()}
        assert found["differing"] == {**expected, "equal": []}


def test_each_item_is_named_once_and_the_message_has_rule_and_remedy(job):
    for found in job[0]:
        (message,) = found["whole"]
        assert message.startswith(f"WorkerStateWarning: {BEGIN}seen is 0 on worker 0 and 1 on worker 1; v is 0. ")
        assert "rule:   a checkpoint has one value of each number, array and variable" in message
        assert "remedy: save a value that is equal on all workers" in message
        assert found["again"] == []
        (message,) = found["another"]
        assert message.partition("\n")[0] == f"WorkerStateWarning: {BEGIN}steps is 0 on worker 0 and 1 on worker 1"


def test_a_manager_warns_too_and_a_filter_can_refuse_the_save(job):
    workers, folder = job
    for found in workers:
        assert len(found["manager"]) == 1
        assert found["error"] == ["Checkpoint.save", 0]
    assert not list(folder.glob("refused*"))


@pytest.mark.parametrize("name", ["own", "own array", "own files", "own arguments"])
def test_equal_positions_in_different_data_fit_only_the_same_number_of_workers(job, name):
    """They were taken for a position in common data, and elements of the other workers were lost."""
    iterator = iter(PIPELINES[name](job[1]))
    with pytest.raises(CheckpointMismatchError, match="data has a position for each of 2 workers, and this job has 1"):
        Checkpoint(data=iterator).restore(job[1] / name)
    Checkpoint(data=iterator).restore(job[1] / f"unread {name}").assert_consumed()


@pytest.mark.parametrize("name", ["same", "same array", "same files"])
def test_positions_in_the_same_data_fit_any_number_of_workers(job, name):
    expected = list(PIPELINES[name](job[1]))[1]
    iterator = iter(PIPELINES[name](job[1]))
    Checkpoint(data=iterator).restore(job[1] / name).assert_consumed()
    assert next(iterator) == expected


PIPELINES = {
    "same": lambda _: Dataset.range(20),
    "same array": lambda _: Dataset.from_tensor_slices(np.arange(20.0)),
    "same files": lambda folder: Dataset.from_text_lines([str(folder / "copy0" / str(number)) for number in range(2)]),
    "own": lambda _: Dataset.range(20),
    "own array": lambda _: Dataset.from_tensor_slices({"x": np.arange(20.0)}).shuffle(5, seed=1).batch(2),
    "own files": lambda folder: Dataset.from_text_lines([str(folder / f"own0-{number}") for number in range(2)]),
    "own arguments": lambda _: Dataset.from_generator(lambda begin: range(begin, begin + 9), args=(0,)),
}
