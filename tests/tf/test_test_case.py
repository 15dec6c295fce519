"""`tf.test.TestCase`: comparisons that hold, and that fail."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import mirrored.tf as tf


class Checks(tf.test.TestCase):
    """Run by the tests below."""

    def runTest(self):
        """Nothing."""


GOOD = [
    ("assertAllEqual", ([1, 2], np.array([1, 2]))),
    ("assertAllClose", ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0 + 1e-7]})),
    ("assertNotAllClose", ([1.0], [1.1])),
    ("assertAllInRange", ([1.0, 2.0], 1.0, 2.0)),
    ("assertShapeEqual", (np.ones((2, 1)), [[0], [0]])),
    ("assertDTypeEqual", (np.ones(2, np.float32), np.float32)),
]
BAD = [
    ("assertAllEqual", ([1, 2], [1, 3]), "Mismatch"),
    ("assertAllEqual", ([[1, 2]], [1, 2]), "!="),
    ("assertAllClose", ([1.0], [1.1]), "Mismatch"),
    ("assertAllClose", ([1.0], {"a": 1.0}), "!="),
    ("assertNotAllClose", ([1.0], [1.0]), "close at all"),
    ("assertAllInRange", ([1.0, 3.0], 1.0, 2.0), "outside"),
    ("assertShapeEqual", ([1], [[1]]), "!="),
    ("assertDTypeEqual", ([1], np.float32), "!="),
]


@pytest.mark.parametrize(("name", "args"), GOOD)
def test_comparisons_hold(name, args):
    getattr(Checks(), name)(*jax.tree.map(tf.constant, args) if name == "assertAllEqual" else args)


@pytest.mark.parametrize(("name", "args", "words"), BAD)
def test_comparisons_fail(name, args, words):
    with pytest.raises(AssertionError, match=words):
        getattr(Checks(), name)(*args)


def test_tensors_are_evaluated():
    assert Checks().evaluate({"a": tf.ones(2)})["a"].tolist() == [1.0, 1.0]
