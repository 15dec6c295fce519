"""What programs ask about a tensor or the moment, and `tf.test`: small names of the top level."""

from __future__ import annotations

import enum
import logging
import time
import unittest
from collections.abc import Iterable
from typing import Any, Final

import jax
import numpy as np

from mirrored._jax.concrete import NotConstant
from mirrored._jax.traces import is_tracer
from mirrored.tf._arrays import executing_eagerly
from mirrored.tf._module import current_name_scope
from mirrored.tf._shapes import TensorSpec
from mirrored.tf._static import known
from mirrored.tf._tensors import as_tensor


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """The value as a NumPy array if it is known now, also while tracing; None if not.

    TensorFlow: `tf.get_static_value`.
    """
    del partial
    try:
        return np.asarray(known(tensor))
    except (NotConstant, jax.errors.TracerArrayConversionError):
        return None


def is_symbolic_tensor(tensor: Any) -> bool:
    """Whether it is being traced, so that it has no value yet."""
    return is_tracer(tensor)


def inside_function() -> bool:
    """Whether a function is being traced."""
    return not executing_eagerly()


def type_spec_from_value(value: Any) -> TensorSpec:
    """The `tf.TensorSpec` of a tensor, or of what becomes one."""
    return TensorSpec.from_tensor(as_tensor(value))


def get_logger() -> logging.Logger:
    """The logger "mirrored"."""
    return logging.getLogger("mirrored")


def timestamp(name: str | None = None) -> float:
    """Seconds since 1970, when it is called.

    TensorFlow: `tf.timestamp`; in compiled code this is the time of tracing.
    """
    del name
    return time.time()


def enable_traceback_filtering() -> None:
    """Leaves JAX's own frames out of tracebacks, as is the default."""
    jax.config.update("jax_traceback_filtering", "auto")


def disable_traceback_filtering() -> None:
    """Shows JAX's own frames in tracebacks."""
    jax.config.update("jax_traceback_filtering", "off")


def is_traceback_filtering_enabled() -> bool:
    """Whether JAX's own frames are left out of tracebacks."""
    return bool(jax.config.jax_traceback_filtering != "off")  # type: ignore[attr-defined]


def assert_proper_iterable(values: Any) -> None:
    """Complains of tensors, arrays and texts, which are no lists of values.

    Raises:
        TypeError: It is one of them, or cannot be gone over.
    """
    if isinstance(values, (jax.Array, np.ndarray, str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"Expected a list or tuple of values, found {type(values).__name__}: write [value].")


class Algorithm(enum.Enum):
    """Names of random number generators; all of them are threefry here."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


class TestCase(unittest.TestCase):
    """`unittest.TestCase` with comparisons of tensors.

    TensorFlow: `tf.test.TestCase`, as far as it concerns values and shapes; there are no sessions.
    """

    def evaluate(self, tensors: Any) -> Any:
        """The tensors as NumPy arrays."""
        return jax.tree.map(np.asarray, tensors)

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """All entries, and shapes, are equal."""
        _require_equal(np.shape(a), np.shape(b), msg)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=msg or "")

    def assertAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None) -> None:
        """All entries of two tensors, or two structures of them, are close, and shapes equal."""
        left, right = jax.tree.flatten(a), jax.tree.flatten(b)
        _require_equal(left[1], right[1], msg)
        for one, other in zip(left[0], right[0], strict=True):
            _require_equal(np.shape(one), np.shape(other), msg)
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol, atol, err_msg=msg or "")

    def assertNotAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None) -> None:
        """Some entry differs."""
        try:
            self.assertAllClose(a, b, rtol, atol)
        except AssertionError:
            return
        raise AssertionError(msg or "The two values are close at all elements.")

    def assertAllInRange(self, target: Any, lower_bound: float, upper_bound: float) -> None:
        """All entries lie between the bounds, or are one of them."""
        values = np.asarray(target)
        outside = (values < lower_bound) | (values > upper_bound)
        if outside.any():
            self.fail(f"{values[outside][:10]} lie outside [{lower_bound}, {upper_bound}]")

    def assertShapeEqual(self, input_a: Any, input_b: Any, msg: str | None = None) -> None:
        """The shapes are equal."""
        _require_equal(tuple(np.shape(input_a)), tuple(np.shape(input_b)), msg)

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        """The dtype is the expected one."""
        _require_equal(np.dtype(as_tensor(target).dtype), np.dtype(expected_dtype), None)


def _require_equal(one: Any, other: Any, msg: str | None) -> None:
    if one != other:
        raise AssertionError(f"{one} != {other}" + (f": {msg}" if msg else ""))


def _no() -> bool:
    """Not here."""
    return False


def _yes() -> bool:
    """Always."""
    return True


NAMES: Final[dict[str, Any]] = {
    **{
        one.__name__: one
        for one in (
            get_logger, get_static_value, inside_function, is_symbolic_tensor, timestamp, type_spec_from_value,
        )
    },
    **{
        f"debugging.{one.__name__}": one
        for one in (
            assert_proper_iterable, disable_traceback_filtering, enable_traceback_filtering,
            is_traceback_filtering_enabled,
        )
    },
    "get_current_name_scope": current_name_scope,
    "random.Algorithm": Algorithm,
    "test.TestCase": TestCase,
    "test.is_built_with_rocm": _no,
    "test.is_built_with_xla": _yes,
    "test.is_cpu_target_available": _yes,
    "test.main": unittest.main,
}  # fmt: skip
