"""Keras on several workers: every example is used once, and the results are those of one process."""

from __future__ import annotations

import os
from typing import cast

import numpy as np
import pytest

import mirrored as mr
from cluster.jobs import job, module_of

pytest.importorskip("keras")
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(180)]


def alone(how: str) -> dict[str, object]:
    strategy = mr.MirroredStrategy([f"CPU:{index}" for index in range(4)])
    return cast("dict[str, object]", module_of("keras_rows").outcome(strategy, how))


def check_same(found: dict[str, object], expected: dict[str, object]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    "how",
    [
        "dropout",
        "dataset",
        "arrays, validated on parts",
        "parts, validated on arrays",
        "uneven parts, validated on dataset",
        "own step",
        "own step, parts",
        "own step, uneven parts",
        "untracked",
        "untracked outside",
        "spectral",
    ],
)
@pytest.mark.sampled(4)
@pytest.mark.long
def test_two_workers_do_what_one_process_does(tmp_path, how):
    with job("keras_rows", [2, 2], tmp_path, how) as started:
        expected = alone(how)
        found = [end.result for end in started.ends(140)]
    for worker in found:
        check_same(worker, expected)


@pytest.mark.parametrize("how", ["known", "unknown", "OFF", "FILE"])
@pytest.mark.long
def test_a_worker_whose_own_data_ends_first_goes_on_with_empty_batches(tmp_path, how):
    with job("keras_own_data", [1, 1], tmp_path, how, *[str(tmp_path)] * (how == "FILE")) as started:
        data = mr.data.Dataset.from_generator(module_of("keras_own_data").together, output_signature=None)
        expected = module_of("keras_own_data").outcome(mr.MirroredStrategy(["CPU:0", "CPU:1"]), data)
        found = [end.result for end in started.ends(140)]
    for worker in found:
        first, second = worker.pop("reads", (12, 0))
        assert first >= 8 > second  # which takes examples only for the spec
        check_same(worker, expected)


@pytest.mark.long
def test_workers_whose_models_differ_are_refused(tmp_path):
    with job("keras_apart", [1, 1], tmp_path) as started:
        for end in started.ends(140):
            found = end.result
            assert found.pop("equal models") == "trained"
            assert "captured array 0 on worker 1" in found.pop("captured")
            differing = "values differ from those of worker 0: sequential_4/dense_4/kernel after step 2 on worker 1"
            assert found.pop("eager").startswith(differing)
            assert found.keys() == {"momentum", "schedule", "evaluated"}
            for words in found.values():
                assert words.startswith("the program on worker 1 ("), found


@pytest.mark.long
def test_a_step_that_only_one_worker_has_new_ends_the_job_within_seconds(tmp_path):
    with job("keras_apart", [1, 1], tmp_path, "new_step", MIRRORED_AGREEMENT_SECONDS="600") as started:
        started.wait_for(1, "NEW", 120)
        for end in started.ends(40):
            assert end.code
            assert "mirrored: the workers cannot continue" in end.output
            assert "of worker 0 is: call Model.train_step (time 2) at keras_apart.py:" in end.output
            assert "of worker 1 is: Model.train_step: call Model.train_step for the first time (time 2)" in end.output


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
            assert end.result["positions"] == [{"is the same": True}] * 2
    assert {"m.keras", "m.weights.h5"} <= set(os.listdir(tmp_path))
    assert not [name for name in os.listdir(tmp_path) if name.endswith(("-m.keras", "-m.weights.h5"))]
