"""`tf.test.TestCase`: comparisons that hold, and that fail, as on TensorFlow; files, sessions, messages."""

from __future__ import annotations

import collections
import os
import sys
import unittest

import jax
import ml_dtypes
import numpy as np
import pytest

import mirrored.tf as tf

Point = collections.namedtuple("Point", "x y")
NAN = float("nan")


@pytest.fixture
def case():
    class Checks(tf.test.TestCase):
        def runTest(self):
            """Nothing."""

    return Checks()


HALF, SINGLE = np.array([1.0], np.float16), np.array([1.0009], np.float32)
GOOD = [
    ("assertAllEqual", ([1, 2], np.array([1, 2]))),
    ("assertAllEqual", ([NAN], [NAN])),
    ("assertAllEqual", ("a", b"a")),
    ("assertAllEqual", (tf.constant("a\0"), b"a\0")),
    ("assertAllEqual", (tf.constant(["a\0"]), [b"a\0"])),
    ("assertAllEqual", ([], [])),
    ("assertNotAllEqual", ([1, 2], [1, 3])),
    ("assertNotAllEqual", ([1, 2], [1])),
    ("assertAllClose", ([1.0, 2.0], np.array([1.0, 2.0]))),
    ("assertAllClose", ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0 + 1e-7]})),
    ("assertAllClose", (Point(1.0, 2.0), {"x": 1.0, "y": 2.0})),
    ("assertAllClose", ([1.0, [2.0, 3.0]], (1.0, (2.0, 3.0)))),
    ("assertAllClose", ([np.ones(1), {"b": np.ones(2)}], [[1.0], {"b": (1.0, 1.0)}])),
    ("assertAllClose", (NAN, NAN)),
    ("assertAllCloseAccordingToType", (HALF, SINGLE)),
    ("assertAllCloseAccordingToType", (HALF.astype(ml_dtypes.bfloat16), [1.009])),
    ("assertNotAllClose", ([1.0], [1.1])),
    ("assertNear", (1.0, 1.1, 0.2)),
    ("assertArrayNear", ([1.0, 2.0], [1.0, 2.05], 0.1)),
    ("assertNDArrayNear", (np.ones(2), np.full(2, 1.01), 0.1)),
    ("assertAllGreater", ([2, 3], 1)),
    ("assertAllGreaterEqual", ([2, 3], 2)),
    ("assertAllLess", ([2, 3], 4)),
    ("assertAllLessEqual", ([2, 3], 3)),
    ("assertAllInSet", ([1, 2], [1, 2, 3])),
    ("assertAllInRange", ([1.0, 2.0], 1.0, 2.0)),
    ("assertShapeEqual", (np.ones((2, 1)), [[0], [0]])),
    ("assertDTypeEqual", (np.ones(2, np.float32), tf.float32)),
    ("assertDeviceEqual", ("/cpu:0", "/device:CPU:0")),
    ("assertStartsWith", ("abc", "ab")),
    ("assertItemsEqual", ([1, 2], [2, 1])),
    ("assertLen", ([1, 2], 2)),
    ("assertEmpty", ([],)),
]
BAD = [
    ("assertAllEqual", ([1, 2], [1, 3]), "Mismatch"),
    ("assertAllEqual", ([b"a\0"], [b"a"]), "Mismatch"),
    ("assertAllEqual", ([[1, 2]], [1, 2]), "!="),
    ("assertNotAllEqual", ([1, 2], [1, 2]), "equal at all"),
    ("assertAllClose", ([1.0], [1.1]), "Mismatch"),
    ("assertAllClose", ([1.0, 2.0], [1.0, 2.0, 3.0]), "!="),
    ("assertAllClose", (1.0, [1.0]), "!="),
    ("assertAllClose", (1.0, 1.00001), "Mismatch"),
    ("assertAllClose", ({"a": 1.0}, {"b": 1.0}), "counts were not equal"),
    ("assertAllCloseAccordingToType", (HALF.astype(np.float32), SINGLE), "Mismatch"),
    ("assertNotAllClose", ([1.0], [1.0]), "close at all"),
    ("assertNear", (1.0, 1.1, 0.05), "difference"),
    ("assertArrayNear", ([1.0, 2.0], [1.0, 2.5], 0.1), "difference"),
    ("assertNDArrayNear", (np.ones(2), np.full(2, 2.0), 0.1), "not less than"),
    ("assertAllGreater", ([2, 3], 2), "not greater"),
    ("assertAllGreaterEqual", ([2, 3], 3), "not greater"),
    ("assertAllLess", ([2, 3], 3), "not less"),
    ("assertAllLessEqual", ([2, 3], 2), "not less"),
    ("assertAllInSet", ([1, 4], [1, 2, 3]), r"1 unique element\(s\) are not in"),
    ("assertAllInRange", ([1.0, 3.0], 1.0, 2.0), "outside"),
    ("assertAllInRange", ([1.0, 2.0], 1.0, 2.0, False, True), r"\[1.0, 2.0\)"),
    ("assertAllInRange", ([1.0, 2.0], 1.0, 2.0, True), r"\(1.0, 2.0\]"),
    ("assertAllInRange", ([NAN], 1.0, 2.0), "outside"),
    ("assertShapeEqual", ([1], [[1]]), "!="),
    ("assertDTypeEqual", ([1], np.float32), "!="),
    ("assertDeviceEqual", ("/job:a/cpu:0", "/cpu:0"), "job:a"),
    ("assertStartsWith", ("abc", "b"), "does not start with"),
]


@pytest.mark.parametrize(("name", "args"), GOOD)
@pytest.mark.parametrize("convert", [lambda one: one, tf.constant], ids=["host", "tensors"])
def test_comparisons_hold(case, name, args, convert):
    is_number = jax.tree.map(lambda one: isinstance(one, (int, float, np.ndarray)), args)
    getattr(case, name)(*jax.tree.map(lambda one, number: convert(one) if number else one, args, is_number))


@pytest.mark.parametrize(("name", "args", "words"), BAD)
def test_comparisons_fail(case, name, args, words):
    with pytest.raises(AssertionError, match=words):
        getattr(case, name)(*args)


def test_what_cannot_be_compared(case):
    with pytest.raises(ValueError, match="dict to non-dict"):
        case.assertAllClose([1.0], {"a": 1.0})
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(lambda context: np.ones(2))
    with pytest.raises(TypeError, match="per-replica"):
        case.assertAllEqual(value, np.ones(2))


def test_values(case):
    found = case.evaluate({"a": tf.ones(2), "b": [tf.Variable(2.0), 3, "x", None]})
    assert found["a"].tolist() == [1.0, 1.0]
    assert found["b"] == [2.0, 3, "x", None]
    assert case.evaluate(lambda: tf.constant(1)) == 1
    for session in (case.session, case.cached_session):
        with session() as one:
            assert one.run(tf.constant([1.0])).tolist() == [1.0]
            with pytest.raises(NotImplementedError, match="placeholders"):
                one.run(tf.constant(1.0), feed_dict={"x": 1})


def test_errors(case):
    with case.assertRaisesWithPredicateMatch(ValueError, "a.c"):
        raise ValueError("xabc")
    with case.assertRaisesWithPredicateMatch(ValueError, lambda error: "y" in str(error)):
        raise ValueError("y")
    with case.assertRaisesIncompatibleShapesError():
        tf.reshape(tf.ones(3), [2])
    with pytest.raises(AssertionError, match="Exception of type"), case.assertRaisesOpError("abc"):
        tf.reshape(tf.ones(3), [2])
    with pytest.raises(AssertionError, match="not raised"), case.assertRaisesWithPredicateMatch(ValueError, "a"):
        pass
    with case.assertRaisesRegexp(ValueError, "a"):  # noqa: PT027
        raise ValueError("a")


def test_messages(case):
    example = tf.train.Example(
        features=tf.train.Features(feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))})
    )
    text = "features { feature { key: 'a' value { int64_list { value: %d } } } }"
    case.assertProtoEquals(text % 1, example)
    with pytest.raises(AssertionError, match="value: 2"):
        case.assertProtoEquals(text % 2, example)
    spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"], "ps": {3: "c:1"}})
    case.assertProtoEquals(
        tf.train.ClusterDef([tf.train.JobDef("ps", {3: "c:1"}), tf.train.JobDef("worker", {0: "a:1", 1: "b:1"})]),
        spec.as_cluster_def(),
    )


def test_files_and_streams(capfd):
    folders = []

    class Files(tf.test.TestCase):
        def test_files(self):
            folders.append(self.get_temp_dir())
            assert self.get_temp_dir() == folders[0]
            assert os.listdir(folders[0]) == []
            assert self.create_tempfile("y.txt", content="hi").read_text() == "hi"
            self.create_tempdir().create_file("z", content="there")
            with self.captureWritesToStream(sys.stderr) as captured:
                os.write(2, b"hello")
            assert captured.contents() == "hello"

    with capfd.disabled():
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Files).run(result)
    assert [message for _, message in result.errors + result.failures] == []
    assert result.testsRun == 1
    assert not os.path.exists(folders[0])


def test_gradients_by_differences():
    by_tape, by_differences = tf.test.compute_gradient(
        lambda x, y: x * y, [np.float32([1, 2]), tf.constant([2.0, 3.0])]
    )
    assert [one.tolist() for one in by_tape] == [[[2, 0], [0, 3]], [[1, 0], [0, 2]]]
    for one, other in zip(by_tape, by_differences, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    total, unconnected = tf.test.compute_gradient(lambda x, _: tf.reduce_sum(x * x), [tf.ones([2, 2]), tf.ones(3)])[0]
    assert (total.tolist(), unconnected.tolist()) == ([[2.0] * 4], [[0.0] * 3])


def test_gradients_of_complex_numbers_and_wrong_ones():
    of_square, numerical = tf.test.compute_gradient(lambda x: tf.reduce_sum(x * x), [tf.constant([1.0 + 1.0j, 2.0])])
    assert of_square[0].tolist() == [[2, -2, 4, 0], [2, 2, 0, 4]]
    np.testing.assert_allclose(of_square[0], numerical[0], atol=1e-2)

    @tf.custom_gradient
    def wrong(x):
        return x * x, lambda upstream: upstream

    by_tape, by_differences = tf.test.compute_gradient(wrong, [tf.constant([3.0])])
    assert by_tape[0] == 1.0
    np.testing.assert_allclose(by_differences[0], 6.0, rtol=1e-3)
    with pytest.raises(ValueError, match="list or tuple"):
        tf.test.compute_gradient(wrong, tf.constant([3.0]))
