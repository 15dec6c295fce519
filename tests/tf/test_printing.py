from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf

# What TensorFlow prints for each.
TEXTS = [
    ((tf.as_dtype("float32"),), "<dtype: 'float32'>"),
    ((np.float32(1.5), "and", 2), "1.5 and 2"),
    ((np.array([1.0, 2.5]),), "[1 2.5]"),
    ((np.array([[1, 2], [3, 4]]),), "[[1 2]\n [3 4]]"),
    ((np.arange(10),), "[0 1 2 ... 7 8 9]"),
    ((np.arange(8).reshape(2, 2, 2),), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]"),
    (({"a": np.array([1]), "b": ["x", (np.float32(2),)]},), "{'a': [1], 'b': ['x', (2)]}"),
    ((np.array([True, False]), None), "[1 0] None"),
    ((np.array([], np.float32),), "[]"),
    ((np.float32("nan"), np.float32("inf")), "nan inf"),
    ((np.complex64(1 + 2j),), "(1,2)"),
    ((tf.constant("one"), b"two", "three"), "one two three"),
    ((tf.constant(["a", "b"]), {"k": tf.constant("v")}), '["a" "b"] {\'k\': v}'),
    ((tf.constant([["a"], ["b"]]),), '[["a"]\n ["b"]]'),
]


@pytest.mark.parametrize(("inputs", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_texts(inputs: tuple[Any, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = [tf.constant(one) if isinstance(one, (np.ndarray, np.generic)) else one for one in inputs]
    tf.print(*tensors)
    assert capsys.readouterr().err == text + "\n"


def test_streams_and_separators(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tf.print(1, 2, sep="-", end="!", output_stream=sys.stdout)
    tf.print(tf.range(10), summarize=-1, output_stream=sys.stdout)
    tf.print(tf.range(10), summarize=1, output_stream=f"file://{tmp_path}/log")
    assert capsys.readouterr().out == "1-2![0 1 2 3 4 5 6 7 8 9]\n"
    assert (tmp_path / "log").read_text() == "[0 ... 9]\n"


def test_compiled_code_prints_when_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    @tf.function
    def run(x: Any) -> Any:
        tf.print("x is", x, {"shape": tf.shape(x)}, "and", None)
        return x + 1

    for value in (1.0, 2.0):
        jax.block_until_ready(run(tf.constant([value])))
    jax.effects_barrier()
    assert capsys.readouterr().err == "x is [1] {'shape': [1]} and None\nx is [2] {'shape': [1]} and None\n"
