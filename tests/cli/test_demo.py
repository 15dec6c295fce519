from __future__ import annotations

import dataclasses
import json

import click
import jax
import numpy as np
import pytest
from click.testing import CliRunner

from mirrored.cli import main
from mirrored.cli.demo.command import _check, _devices_for, as_data
from mirrored.cli.demo.copies import Copies, copies_of, hash_arrays, hash_variables
from mirrored.cli.demo.digits import Examples, load_digits
from mirrored.cli.demo.report import Findings, write_report
from mirrored.cli.demo.training import History, Trainer
from mirrored.strategies import MirroredStrategy
from mirrored.topology.device_assignment import make_device_assignment


@pytest.fixture
def findings():
    """A demo that went well."""
    digits = np.arange(20, dtype=np.int32) % 10
    test = Examples(np.random.default_rng(0).random((20, 8, 8, 1), np.float32), digits)
    history = History(images_per_epoch=128, losses=[2.0, 1.0, 0.5, 0.25], epoch_seconds=[4.0, 2.0])
    copies = [Copies("dense/kernel", (3, 2), ("aa", "aa"))]
    return Findings(make_device_assignment(["CPU:0"], 2), history, test, digits, copies, {1: "0f", 2: "0f"}, 3.0)


def spoilt(findings: Findings, **changes: object) -> Findings:
    return dataclasses.replace(findings, **changes)


@pytest.mark.timeout(240)  # three training runs and what they compile
@pytest.mark.long
def test_demo_shows_everything_and_writes_the_report(tmp_path):
    done = CliRunner().invoke(main, ["demo", "--quick", "--replicas", "2", "--epochs", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "357 test images, each seen exactly once: 5 batches of 64 and one of 37 over 2 replicas" in done.output
    assert done.output.count("bit-identical") == 8
    assert "bitwise equal" in done.output
    assert "NOT" not in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"loss.png", "predictions.png", "summary.md"}
    assert "2 on 2 devices (cpu)" in (tmp_path / "summary.md").read_text()


def test_results_as_json(findings):
    found = json.loads(json.dumps(as_data(findings)))
    assert (found["replicas"], found["devices"], found["accuracy"]) == (2, 1, 1.0)
    assert found["losses"] == [2.0, 1.0, 0.5, 0.25]
    assert found["hashes_by_number_of_devices"] == {"1": "0f", "2": "0f"}
    assert json.loads(json.dumps(as_data(spoilt(findings, hashes={1: "0f", 2: "1f"}))))["bits_are_equal"] is False


@pytest.mark.long
def test_prediction_sees_every_image_once_and_in_order():
    """Also those of the last batch, which two replicas share unevenly."""
    _, test = load_digits()
    few = test.take(np.arange(67))
    trainer = Trainer(MirroredStrategy(["CPU:0", "CPU:1"]))
    expected = np.asarray(trainer.model(few.images)).argmax(axis=-1)
    np.testing.assert_array_equal(trainer.predict_all(few), expected)


@pytest.mark.long
def test_copies_are_those_of_every_replica():
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4)
    variables = Trainer(strategy).model.variables
    copies = copies_of(strategy, variables)
    assert [len(one.hashes) for one in copies] == [4] * 8
    assert all(one.are_equal for one in copies)
    assert copies[0].hashes[3] == hash_arrays([variables[0].numpy()])
    variables[0].assign_add(variables[0].read_value())
    assert copies_of(strategy, variables)[0].hashes != copies[0].hashes


@pytest.mark.long
def test_one_bit_changes_the_hash():
    strategy = MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variables = Trainer(strategy).model.variables
    before = hash_variables(variables)
    flipped = variables[-1].numpy().copy()
    flipped.view(np.int32)[0] ^= 1
    variables[-1].assign(flipped)
    assert hash_variables(variables) != before


@pytest.mark.parametrize(("num_replicas", "expected"), [(1, 1), (2, 2), (6, 6), (9, 8), (16, 8)])
def test_takes_one_device_per_replica_while_there_are_any(num_replicas, expected):
    assert _devices_for(num_replicas) == jax.devices()[:expected]


@pytest.mark.long
def test_report_says_what_was_found(findings, tmp_path):
    written = write_report(findings, tmp_path / "deep" / "report")
    assert [path.name for path in written] == ["loss.png", "predictions.png", "summary.md"]
    for picture in written[:2]:
        assert picture.read_bytes().startswith(b"\x89PNG")
    summary = written[2].read_text()
    assert "| replicas | 2 on 1 devices (cpu) |" in summary
    assert "| loss | 2.000 at the first step, 0.3750 in the last epoch |" in summary
    assert "| speed | 64 images/s |" in summary
    assert "| test images | 20 of 20 right (100.00%), each seen once |" in summary
    assert "| copies | 1 variables x 2 replicas: bit-identical |" in summary
    assert summary.endswith("The final weights are bit-identical.\n")


@pytest.mark.long
def test_report_does_not_hide_failures(findings, tmp_path):
    drifted = spoilt(findings, copies=[Copies("w", (), ("aa", "ab"))], hashes={1: "0f", 2: "0e"})
    summary = write_report(drifted, tmp_path)[2].read_text()
    assert summary.count("**NOT bit-identical**") == 2


def test_a_demo_that_went_well_passes(findings):
    _check(findings, must_learn=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digits": np.zeros(19, np.int32)}, "not every test image was evaluated exactly once"),
        ({"digits": np.zeros(20, np.int32)}, "only 10.00% of the test images right"),
        ({"copies": [Copies("w", (), ("aa", "ab"))]}, "copies of a variable differ"),
        ({"hashes": {1: "0f", 2: "0e"}}, "deterministic training runs are not bit-identical"),
    ],
)
def test_a_demo_that_failed_says_so(findings, change, message):
    with pytest.raises(click.ClickException, match=message):
        _check(spoilt(findings, **change), must_learn=True)


def test_a_quick_demo_need_not_learn(findings):
    _check(spoilt(findings, digits=np.zeros(20, np.int32)), must_learn=False)
