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


def test_compiled_code_prints_text_in_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    """The text was printed while tracing: in the first call only."""

    @tf.function
    def run(x: Any) -> Any:
        tf.print("step of", tf.shape(x), tf.constant("a"))
        return x + 1

    for _ in range(3):
        jax.block_until_ready(run(tf.constant([1.0])))
    jax.effects_barrier()
    assert capsys.readouterr().err == "step of [1] a\n" * 3


def test_only_the_taken_branch_prints(capsys: pytest.CaptureFixture[str]) -> None:
    @tf.function
    def run(x: Any) -> Any:
        if x > 0:
            tf.print("positive")
        else:
            tf.print("not positive")
        return tf.cond(x > 1, lambda: tf.print("large") or x, lambda: tf.print("small") or -x)

    expected = {1.0: ["positive", "small"], -1.0: ["not positive", "small"], 2.0: ["large", "positive"]}
    for value, printed in expected.items():
        jax.block_until_ready(run(tf.constant(value)))
        jax.effects_barrier()
        assert sorted(capsys.readouterr().err.splitlines()) == printed


def test_loops_print_in_each_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    @tf.function
    def run(count: Any) -> Any:
        total = tf.constant(0)
        for i in tf.range(count):
            tf.print("iteration")
            total += i
        return total

    jax.block_until_ready(run(tf.constant(3)))
    jax.effects_barrier()
    assert capsys.readouterr().err == "iteration\n" * 3


@pytest.mark.parametrize("devices", [["CPU:0", "CPU:1"], ["CPU:0"]])
def test_each_replica_prints_text(capsys: pytest.CaptureFixture[str], devices: list[str]) -> None:
    strategy = tf.distribute.MirroredStrategy(devices, num_replicas=2)

    def step(x: Any) -> Any:
        tf.print("text")
        tf.print("tensor", x)
        return x

    @tf.function
    def run(x: Any) -> Any:
        return strategy.run(step, args=(x,))

    for call in (run, lambda x: strategy.run(step, args=(x,))):
        for _ in range(2):
            jax.block_until_ready(jax.tree.leaves(call(tf.constant(1))))
        jax.effects_barrier()
        assert sorted(capsys.readouterr().err.splitlines()) == ["tensor 1"] * 4 + ["text"] * 4


def test_arrays_are_printed_as_they_were_passed(capsys: pytest.CaptureFixture[str]) -> None:
    array = np.array([1, 2])

    @tf.function
    def run(x: Any) -> Any:
        tf.print(array)
        array[:] = 0
        return x

    jax.block_until_ready(run(tf.constant(1)))
    jax.effects_barrier()
    assert capsys.readouterr().err == "[1 2]\n"
