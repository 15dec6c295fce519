"""`tf.compat.v1`: results of functions with TensorFlow 1's parameters are TensorFlow's; shared names are the same."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._names import LAZY, NAMES
from tf import compat_v1_cases

v1: Any = tf.compat.v1
EXPECTED = json.loads((Path(__file__).parent / "compat_v1_tf_2_21.json").read_text("utf-8"))
CASES = compat_v1_cases.cases(v1)


def compare(found: Any, expected: Any) -> None:
    if isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
    else:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.first(26)
@pytest.mark.parametrize("name", EXPECTED)
def test_results_are_those_of_tensorflow(name: str) -> None:
    compare(CASES[name](), EXPECTED[name])


def test_every_case_is_recorded() -> None:
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("name", ["cast", "concat", "nn.relu", "math.add", "train.Example", "errors.NotFoundError"])
def test_names_of_one_meaning_are_shared(name: str) -> None:
    def find(found: Any) -> Any:
        for part in name.split("."):
            found = getattr(found, part)
        return found

    assert find(v1) is find(tf)


def test_every_name_exists() -> None:
    for name in [one for one in [*NAMES, *LAZY] if one.startswith("compat.v1.")]:
        found: Any = tf
        for part in name.split("."):
            found = getattr(found, part)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: v1.reduce_sum(1.0, None, False, "n", None, None, 1), "takes 6 arguments, but 7"),
        (lambda: v1.reduce_sum(1.0, along=0), "unexpected keyword argument 'along'"),
        (lambda: v1.reduce_sum([1.0], 0, reduction_indices=0), "two values for 'axis'"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_dropout_takes_one_of_rate_and_keep_prob() -> None:
    with pytest.raises(ValueError, match="either `rate`, or `keep_prob`"):
        v1.nn.dropout([1.0])
    assert float(tf.reduce_mean(v1.nn.dropout(tf.ones([1000]), 0.25))) == pytest.approx(1.0, abs=0.2)


def test_losses_of_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels of shape \(2,\) and predictions of shape \(2, 1\)"):
        v1.losses.mean_squared_error([1.0, 2.0], [[1.0], [2.0]])


@pytest.mark.parametrize("name", ["Session", "placeholder", "get_default_graph"])
def test_names_of_graphs_say_why_they_are_missing(name: str) -> None:
    with pytest.raises(AttributeError, match="there are no graphs and sessions"):
        getattr(v1, name)


def test_messages_go_to_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mirrored"):
        v1.logging.info("step %d", 3)
        v1.logging.warn("slow")
    assert caplog.messages == ["step 3", "slow"]


@pytest.mark.long
def test_an_eager_program_of_tensorflow_1_trains() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = tf.Variable([[0.0]])
        optimizer = v1.train.GradientDescentOptimizer(0.1)

    def step(x: Any, y: Any) -> Any:
        with v1.GradientTape() as tape:
            loss = v1.losses.mean_squared_error(y, v1.matmul(x, weight)) / 2
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    x = np.array([[1.0], [2.0]], np.float32)
    losses = [float(strategy.reduce("SUM", strategy.run(step, args=(x, 3 * x)), axis=None)) for _ in range(20)]
    assert losses[-1] < losses[0] / 100
    assert float(weight[0, 0]) == pytest.approx(3.0, abs=0.05)
