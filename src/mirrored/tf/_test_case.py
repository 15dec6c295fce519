"""`tf.test.TestCase`: a `unittest.TestCase` with assertions on tensors."""

from __future__ import annotations

import unittest
from typing import Any, Final

import jax
import numpy as np

from mirrored._typing import DTypeLike, Operand, PyTree
from mirrored.tf._tensors import as_tensor


class TestCase(unittest.TestCase):
    """A `unittest.TestCase` with assertions on tensors.

    TensorFlow: `tf.test.TestCase`, the parts for values and shapes; there are no sessions.
    """

    def evaluate(self, tensors: PyTree) -> Any:
        """Converts tensors, or structures of tensors, to NumPy arrays."""
        return jax.tree.map(np.asarray, tensors)

    def assertAllEqual(self, a: Operand, b: Operand, msg: str | None = None) -> None:
        """Asserts that two tensors have the same shape and equal elements."""
        _require_equal(np.shape(a), np.shape(b), msg)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=msg or "")

    def assertAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Asserts that two tensors, or structures of tensors, have the same shapes and close elements."""
        left, right = jax.tree.flatten(a), jax.tree.flatten(b)
        _require_equal(left[1], right[1], msg)
        for one, other in zip(left[0], right[0], strict=True):
            _require_equal(np.shape(one), np.shape(other), msg)
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol, atol, err_msg=msg or "")

    def assertNotAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Asserts that two tensors differ in shape, or that some of their elements are not close."""
        try:
            self.assertAllClose(a, b, rtol, atol)
        except AssertionError:
            return
        raise AssertionError(msg or "The two values are close at all elements.")

    def assertAllInRange(self, target: Operand, lower_bound: float, upper_bound: float) -> None:
        """Asserts that all elements of a tensor are within a range, both bounds included."""
        values = np.asarray(target)
        outside = (values < lower_bound) | (values > upper_bound)
        if outside.any():
            self.fail(f"{values[outside][:10]} lie outside [{lower_bound}, {upper_bound}]")

    def assertShapeEqual(self, input_a: Operand, input_b: Operand, msg: str | None = None) -> None:
        """Asserts that two tensors have the same shape."""
        _require_equal(tuple(np.shape(input_a)), tuple(np.shape(input_b)), msg)

    def assertDTypeEqual(self, target: Operand, expected_dtype: DTypeLike) -> None:
        """Asserts that a tensor has the expected dtype."""
        _require_equal(np.dtype(as_tensor(target).dtype), np.dtype(expected_dtype), None)


def _require_equal(one: object, other: object, msg: str | None) -> None:
    if one != other:
        raise AssertionError(f"{one} != {other}" + (f": {msg}" if msg else ""))


NAMES: Final[dict[str, Any]] = {"test.TestCase": TestCase, "test.main": unittest.main}
