"""Keras on several workers: every example is used once, and the results are those of one process."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest

import mirrored as mr
from cluster.jobs import PROGRAMS, job

pytest.importorskip("keras")
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(180)]


def alone(how: str) -> dict[str, object]:
    specification = importlib.util.spec_from_file_location("keras_rows", PROGRAMS / "keras_rows.py")
    assert specification is not None
    assert specification.loader is not None
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    return program.outcome(mr.MirroredStrategy([f"CPU:{index}" for index in range(4)]), how)


@pytest.mark.parametrize(
    "how", ["dropout", "dataset", "arrays", "parts", "own step", "own step, parts", "own step, uneven parts"]
)
@pytest.mark.sampled(4)
@pytest.mark.long
def test_two_workers_do_what_one_process_does(tmp_path, how):
    with job("keras_rows", [2, 2], tmp_path, how) as started:
        expected = alone(how)
        found = [end.result for end in started.ends(140)]
    for worker in found:
        assert worker.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(worker[name], values, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.long
def test_workers_whose_models_differ_are_refused(tmp_path):
    with job("keras_apart", [1, 1], tmp_path) as started:
        for end in started.ends(140):
            found = end.result
            assert found.pop("equal models") == "trained"
            assert "captured array 0 on worker 1" in found.pop("captured")
            assert found.keys() == {"momentum", "schedule", "evaluated"}
            for words in found.values():
                assert words.startswith("the program on worker 1 ("), found


@pytest.mark.parametrize("how", ["unseeded", "own step, unseeded"])
@pytest.mark.long
def test_workers_that_shuffle_differently_are_refused(tmp_path, how):
    with job("keras_rows", [1, 1], tmp_path, how) as started:
        started.wait_for(0, "RESULT", 120)
        output = started.output(0)
    assert "DisagreementError" in output
    first = "the first batch[0] on worker 1; the first batch[1]" if "own" in how else "the first batch"
    assert f"values differ from those of worker 0: {first} on worker 1" in output


@pytest.mark.long
def test_interrupted_runs_go_on_with_each_workers_data_and_callbacks_write_one_file(tmp_path):
    with job("keras_resuming", [1, 1], tmp_path, str(tmp_path)) as started:
        for end in started.ends(140):
            assert end.result["callbacks"] == {
                "left": ["latest.weights.h5", "training_metadata.json"],
                "is removed": True,
                "epochs": 2,
                "goes on": True,
                "m.weights.h5": True,
                "m.keras": True,
            }
            assert end.result["positions"] == {"is the same": True}
    assert {"m.keras", "m.weights.h5"} <= set(os.listdir(tmp_path))
    assert not [name for name in os.listdir(tmp_path) if name.endswith(("-m.keras", "-m.weights.h5"))]
