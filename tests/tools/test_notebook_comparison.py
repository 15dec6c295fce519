"""Results of notebooks against those recorded on TensorFlow: what counts as deterministic, and what as different."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from notebook.comparison import compare, deterministic
from notebook.observations import Recorder, agree
from notebook.results import CellResult, NotebookResult

import mirrored as mr

TOOL = Path(__file__).parents[2] / "tools" / "run_notebook.py"


def observed(**values: object) -> dict[str, dict[str, object]]:
    return Recorder().take(values, set(values))


def result(*cells: dict[str, dict[str, object]]) -> NotebookResult:
    return NotebookResult("one", [CellResult(i, "passed", observed=cell) for i, cell in enumerate(cells, 1)])


@pytest.mark.parametrize(
    "value",
    [3, 2.5, True, np.arange(6.0).reshape(2, 3), np.float16(0.1), [1, [2, 3]], {"a": 1.0}, "loss 0.25 at step 3"],
    ids=str,
)
def test_equal_values_agree(value):
    first, second = observed(x=value), observed(x=value)
    assert first
    assert all(agree(first[where], second[where]) for where in first)


def test_numbers_shapes_and_positions_count():
    one = observed(x=np.arange(100.0))["name x"]
    assert not agree(one, observed(x=np.arange(100.0).reshape(10, 10))["name x"])
    changed = np.arange(100.0)
    changed[50] += 10  # not among the numbers that are kept: the mean shows it
    assert not agree(one, observed(x=changed)["name x"])
    assert not agree(observed(x=1.0)["name x"], observed(x=1.01)["name x"])
    assert agree(observed(x=float("nan"))["name x"], observed(x=float("nan"))["name x"])


def test_variables_are_read_and_other_objects_left_out():
    seen = observed(v=mr.Variable(jnp.ones(3)), f=len, text="no numbers", _hidden=1)
    assert list(seen) == ["name v"]
    assert seen["name v"]["shape"] == [3]


def test_texts_are_compared_without_shapes_dtypes_and_addresses():
    ours = observed(t="Array([1., 2.], dtype=float32) at 0x7f01")
    theirs = observed(t="tf.Tensor([1. 2.], shape=(2,), dtype=float32) at 0x7e55")
    assert agree(ours["name t"], theirs["name t"])


def test_the_messages_of_errors_are_left_out():
    assert list(observed(error="ValueError: shapes (2,) and (3,) differ", loss="Errors: 3")) == ["name loss"]


def test_printed_and_shown_values_are_observed(capsys):
    recorder = Recorder()
    recorder.print("loss", np.float32(2.0))
    recorder.show([1, 2])
    assert sorted(recorder.take({}, set())) == ["printed 1", "shown[0]", "shown[1]"]
    assert capsys.readouterr().out == "loss 2.0\n"
    assert recorder.take({}, set()) == {}


def test_only_what_all_recorded_runs_share_is_deterministic():
    kept = deterministic([result(observed(x=1.0, r=0.3)), result(observed(x=1.0, r=0.7))])
    assert list(kept) == ["1"]
    assert list(kept["1"]) == ["name x"]


def test_an_element_that_two_random_lists_share_is_not_deterministic():
    runs = [result(observed(losses=[1.0, 2.0], size=2)), result(observed(losses=[1.0, 3.0], size=2))]
    assert deterministic(runs) == {"1": observed(size=2)}


def test_a_wrong_result_is_a_difference():
    recorded = deterministic([result(observed(x=1.0), observed(y=2.0))] * 2)
    compared = compare(result(observed(x=1.0), observed(y=3.0)), recorded)
    assert (compared.cells, compared.values, compared.differing_cells) == (2, 2, 1)
    (difference,) = compared.differences
    assert (difference.cell, difference.where) == (2, "name y")


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": [source]}
    notebook = folder / "notebook.ipynb"
    notebook.write_text(json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 0, "metadata": {}}))
    command = [sys.executable, str(TOOL), str(notebook), "--devices", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, cwd=folder)


@pytest.mark.long
def test_records_and_compares(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("class config:\n  list_physical_devices = lambda kind: ['CPU']\n"
                                            "  LogicalDeviceConfiguration = object\n"
                                            "  set_logical_device_configuration = lambda *_: None\n")  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    recording = tmp_path / "recorded.json"
    source = "import random, time\nx = 2.5\nr = random.Random(time.time_ns()).random()"
    done = run(tmp_path, source, "--record", str(recording), "--tensorflow", sys.executable)
    assert done.returncode == 0, done.stderr
    (cells,) = json.loads(recording.read_text()).values()
    assert list(cells["1"]) == ["name x"]
    assert run(tmp_path, source, "--compare", str(recording)).returncode == 0
    wrong = run(tmp_path, source.replace("2.5", "2.6"), "--compare", str(recording))
    assert wrong.returncode == 1
    assert "differs" in wrong.stdout
