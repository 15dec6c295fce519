"""`tf.test.TestCase`: a test case with assertions on tensors."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from mirrored import extras
from mirrored._typing import DTypeLike, Operand, PyTree
from mirrored.tf._data.host_arrays import as_bytes_array, is_text
from mirrored.tf._device_spec import DeviceSpec
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError, OpError
from mirrored.tf._nest import map_structure
from mirrored.tf._tensors import as_tensor, is_tensor
from mirrored.values.distributed_values import PerReplica

if TYPE_CHECKING:
    from absl import flags
    from absl.testing import absltest
else:
    absltest = extras.load("absl.testing.absltest", called="tf.test", extra="test-case", package="absl-py")
    flags = extras.load("absl.flags", called="tf.test", extra="test-case", package="absl-py")

Array: TypeAlias = np.ndarray[Any, Any]


class TestSession:
    """The session of a test: `run` returns the values of tensors, which eager execution has already computed.

    Args:
        test_case: The test.

    TensorFlow: the result of `tf.test.TestCase.cached_session` in eager mode.
    """

    def __init__(self, test_case: TestCase) -> None:
        self._test_case = test_case

    def run(self, fetches: PyTree, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Returns the values of tensors, or of structures of tensors, as NumPy arrays.

        Raises:
            NotImplementedError: There is something to feed: there are no placeholders.
        """
        if feed_dict:
            raise NotImplementedError("feed_dict: there are no placeholders; pass the values to a function")
        return self._test_case.evaluate(fetches)


class TestCase(absltest.TestCase):
    """A test case with assertions on tensors: a `unittest.TestCase` and an `absl.testing.absltest.TestCase`.

    TensorFlow: `tf.test.TestCase`, without what belongs to graphs.
    """

    # Values, files and sessions

    def evaluate(self, tensors: PyTree) -> Any:
        """Converts tensors and variables, or structures of them, to NumPy arrays; other values stay unchanged.

        A function without arguments is called first.
        """
        value = tensors() if callable(tensors) and not is_tensor(tensors) else tensors
        return map_structure(lambda one: np.asarray(one)[()] if is_tensor(one) else one, value)

    def get_temp_dir(self) -> str:
        """Returns the path of an empty folder for the files of this test; the folder is deleted after the test."""
        made = getattr(self, "_temporary", None)
        if made is None:
            made = self._temporary = tempfile.TemporaryDirectory()
            self.addCleanup(made.cleanup)
        return str(made.name)

    def create_tempdir(self, *args: Any, **kwargs: Any) -> Any:
        """Creates a temporary folder, as `absltest.TestCase.create_tempdir` does, under any test runner."""
        _note_flags()
        return super().create_tempdir(*args, **kwargs)

    def create_tempfile(self, *args: Any, **kwargs: Any) -> Any:
        """Creates a temporary file, as `absltest.TestCase.create_tempfile` does, under any test runner."""
        _note_flags()
        return super().create_tempfile(*args, **kwargs)

    @contextlib.contextmanager
    def session(
        self, graph: None = None, config: object = None, use_gpu: bool = True, force_gpu: bool = False
    ) -> Iterator[TestSession]:
        """Returns a context manager that yields a session, whose `run` returns the values of eager tensors."""
        del graph, config, use_gpu, force_gpu
        yield TestSession(self)

    cached_session = session

    @contextlib.contextmanager
    def captureWritesToStream(self, stream: IO[str]) -> Iterator[Any]:
        """A context manager that captures writes to a stream; yields an object whose `contents()` is the text."""
        with tempfile.TemporaryFile("w+") as captured:
            stream.flush()
            number = stream.fileno()
            saved = os.dup(number)
            result = _Captured()
            try:
                os.dup2(captured.fileno(), number)
                yield result
            finally:
                stream.flush()
                os.dup2(saved, number)
                os.close(saved)
                captured.seek(0)
                result.text = captured.read()

    # Equal and close

    def assertAllEqual(self, a: PyTree, b: PyTree, msg: str | None = None) -> None:
        """Asserts that two tensors have the same shape and equal elements; NaNs are equal."""
        one, other = _with_texts(a), _with_texts(b)
        _require_equal(one.shape, other.shape, msg)
        np.testing.assert_array_equal(one, other, err_msg=msg or "")

    def assertNotAllEqual(self, a: PyTree, b: PyTree, msg: str | None = None) -> None:
        """Asserts that two tensors differ in shape or in some element."""
        self._fails(lambda: self.assertAllEqual(a, b), msg or "The two values are equal at all elements.")

    def assertAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Asserts that two tensors, or structures of tensors, have the same shapes and close elements.

        Lists, tuples and arrays compare with each other; so do dicts and named tuples.

        Raises:
            ValueError: Only one of the two is a dict.
        """
        a, b = (one._asdict() if hasattr(one, "_asdict") else one for one in (a, b))
        if isinstance(a, Mapping) != isinstance(b, Mapping):
            raise ValueError(f"Can't compare dict to non-dict, {a} vs {b}. {msg or ''}")
        if isinstance(a, Mapping):
            self.assertCountEqual(a, b, msg)
            for key in a:
                self.assertAllClose(a[key], b[key], rtol, atol, msg)
            return
        one, other = _array_or_none(a), _array_or_none(b)
        if one is None or other is None:
            self.assertEqual(len(a), len(b), msg)
            for left, right in zip(a, b, strict=True):
                self.assertAllClose(left, right, rtol, atol, msg)
            return
        _require_equal(one.shape, other.shape, msg)
        np.testing.assert_allclose(_wide(one), _wide(other), rtol, atol, err_msg=msg or "")

    def assertAllCloseAccordingToType(
        self,
        a: PyTree,
        b: PyTree,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        float_rtol: float = 1e-6,
        float_atol: float = 1e-6,
        half_rtol: float = 1e-3,
        half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2,
        bfloat16_atol: float = 1e-2,
        msg: str | None = None,
    ) -> None:
        """Asserts that two tensors are close, with tolerances for the less precise of their dtypes."""
        names = {_array(a).dtype.name, _array(b).dtype.name}
        for name, relative, absolute in (
            ("float32", float_rtol, float_atol),
            ("float16", half_rtol, half_atol),
            ("bfloat16", bfloat16_rtol, bfloat16_atol),
        ):
            if name in names:
                rtol, atol = max(rtol, relative), max(atol, absolute)
        self.assertAllClose(a, b, rtol, atol, msg)

    def assertNotAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Asserts that two tensors differ in shape, or that some of their elements are not close."""
        message = msg or "The two values are close at all elements."
        self._fails(lambda: self.assertAllClose(a, b, rtol, atol), message)

    def assertNear(self, f1: float, f2: float, err: float, msg: str | None = None) -> None:
        """Asserts that two numbers differ by at most `err`."""
        difference = abs(float(f1) - float(f2))
        self.assertLessEqual(difference, err, msg or f"{f1} != {f2} +/- {err} (difference: {difference})")

    def assertArrayNear(
        self, farray1: Sequence[float], farray2: Sequence[float], err: float, msg: str | None = None
    ) -> None:
        """Asserts that two sequences have the same length and that corresponding numbers differ by at most `err`."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, other in zip(farray1, farray2, strict=True):
            self.assertNear(one, other, err, msg)

    def assertNDArrayNear(self, ndarray1: Operand, ndarray2: Operand, err: float, msg: str | None = None) -> None:
        """Asserts that the norm of the difference of two tensors is less than `err`."""
        difference = float(np.linalg.norm(_wide(_array(ndarray1)) - _wide(_array(ndarray2))))
        self.assertLess(difference, err, msg)

    # Bounds

    def assertAllGreater(self, a: Operand, comparison_target: float) -> None:
        """Asserts that all elements of a tensor are greater than a number."""
        self.assertGreater(_array(a).min(), comparison_target)

    def assertAllLess(self, a: Operand, comparison_target: float) -> None:
        """Asserts that all elements of a tensor are less than a number."""
        self.assertLess(_array(a).max(), comparison_target)

    def assertAllGreaterEqual(self, a: Operand, comparison_target: float) -> None:
        """Asserts that all elements of a tensor are greater than or equal to a number."""
        self.assertGreaterEqual(_array(a).min(), comparison_target)

    def assertAllLessEqual(self, a: Operand, comparison_target: float) -> None:
        """Asserts that all elements of a tensor are less than or equal to a number."""
        self.assertLessEqual(_array(a).max(), comparison_target)

    def assertAllInSet(self, target: Operand, expected_set: Collection[Any]) -> None:
        """Asserts that all elements of a tensor are in a set."""
        others = [one for one in np.unique(_array(target)).tolist() if one not in expected_set]
        if others:
            self.fail(f"{len(others)} unique element(s) are not in the set {expected_set}: {others[:10]}")

    def assertAllInRange(
        self,
        target: Operand,
        lower_bound: float,
        upper_bound: float,
        open_lower_bound: bool = False,
        open_upper_bound: bool = False,
    ) -> None:
        """Asserts that all elements of a tensor are within a range, which includes its bounds by default."""
        values = _array(target)
        above = values > lower_bound if open_lower_bound else values >= lower_bound
        below = values < upper_bound if open_upper_bound else values <= upper_bound
        outside = ~(above & below)  # NaNs are outside, too
        if outside.any():
            shown = f"{'(' if open_lower_bound else '['}{lower_bound}, {upper_bound}{')' if open_upper_bound else ']'}"
            self.fail(f"{values[outside][:10]} are outside the range {shown}")

    # Shapes, dtypes, devices and messages

    def assertShapeEqual(self, input_a: Operand, input_b: Operand, msg: str | None = None) -> None:
        """Asserts that two tensors have the same shape."""
        _require_equal(tuple(np.shape(input_a)), tuple(np.shape(input_b)), msg)

    def assertDTypeEqual(self, target: Operand, expected_dtype: DTypeLike) -> None:
        """Asserts that a tensor has the expected dtype."""
        _require_equal(np.dtype(as_tensor(target).dtype), array_dtype(expected_dtype), None)

    def assertDeviceEqual(self, device1: object, device2: object, msg: str | None = None) -> None:
        """Asserts that two device names mean the same device."""
        one, other = (DeviceSpec.from_string(str(device or "")).to_string() for device in (device1, device2))
        self.assertEqual(one, other, msg)

    def assertProtoEquals(self, expected_message_maybe_ascii: object, message: Any, msg: str | None = None) -> None:
        """Asserts that a protocol buffer message equals an expected message, which may be given in text format."""
        expected = expected_message_maybe_ascii
        if isinstance(expected, str):
            text_format = importlib.import_module("google.protobuf.text_format")  # an optional package
            expected = text_format.Parse(expected, type(message)())
        self.assertEqual(expected, message, msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """Asserts that a text starts with another text."""
        if not actual.startswith(expected_start):
            self.fail(f"{actual!r} does not start with {expected_start!r}" + (f" : {msg}" if msg else ""))

    # Exceptions

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(  # type: ignore[override]
        self,
        exception_type: type[BaseException] | tuple[type[BaseException], ...],
        expected_err_re_or_predicate: str | Callable[[BaseException], bool],
    ) -> Iterator[None]:
        """Context manager: asserts that the block raises an error that a pattern or a function accepts."""
        expected = expected_err_re_or_predicate
        with self.assertRaises(exception_type) as caught:
            yield
        error = caught.exception
        matches = re.search(expected, str(error)) if isinstance(expected, str) else expected(error)
        if not matches:
            raise AssertionError(f"Exception of type {type(error)}: {error}") from error

    def assertRaisesOpError(self, expected_err_re_or_predicate: str | Callable[[BaseException], bool]) -> Any:
        """Context manager: asserts that the block raises a matching `tf.errors.OpError`."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    def assertRaisesIncompatibleShapesError(
        self,
        exception_type: type[BaseException] | tuple[type[BaseException], ...] = InvalidArgumentError,
        expected_err_re_or_predicate: str = "",
    ) -> Any:
        """Context manager: asserts that the block raises an error about incompatible shapes."""
        return self.assertRaisesWithPredicateMatch(exception_type, expected_err_re_or_predicate)

    def assertRaisesRegexp(self, *args: Any, **kwargs: Any) -> Any:
        """The former name of `assertRaisesRegex`."""
        return self.assertRaisesRegex(*args, **kwargs)

    def assertItemsEqual(self, items1: Any, items2: Any, msg: str | None = None) -> None:
        """The former name of `assertCountEqual`."""
        self.assertCountEqual(items1, items2, msg)

    def _fails(self, check: Callable[[], None], message: str) -> None:
        try:
            check()
        except AssertionError:
            return
        raise AssertionError(message)


class _Captured:
    """The text that was written to a stream in a `captureWritesToStream` block."""

    text = ""

    def contents(self) -> str:
        """Returns the text that was written to the stream."""
        return self.text


def _note_flags() -> None:
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # absltest reads its flags, which other test runners do not parse


def _array(value: PyTree) -> Array:
    """Converts a tensor, a variable, a number, or a list of them to a NumPy array.

    Raises:
        TypeError: The value is a per-replica value, which is not one array.
        ValueError: The parts of a list have different shapes.
    """
    if isinstance(value, PerReplica):
        raise TypeError(f"a per-replica value is not one tensor: compare its components, not {value!r}"[:300])
    if isinstance(value, (list, tuple)):
        return np.array([_array(one) for one in value]) if len(value) else np.array([])
    return np.asarray(value)


def _array_or_none(value: PyTree) -> Array | None:
    """Returns a value as an array of numbers, or None if it is a structure of several arrays."""
    if isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
        return None
    try:
        array = _array(value)
    except ValueError:
        return None
    if array.dtype.kind == "O" and not array.ndim:
        raise TypeError(f"{type(value).__name__} is not a tensor: {value!r}"[:300])
    return None if array.dtype.kind == "O" else array


def _wide(array: Array) -> Array:
    """Converts floating-point arrays, including bfloat16, to float64, which NumPy's comparisons support."""
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def _with_texts(value: PyTree) -> Array:
    """Converts a value to a NumPy array, with strings as bytes objects, as in tensors of strings."""
    if is_text(value):
        return as_bytes_array(value)  # NumPy's arrays of bytes lose NUL characters at their ends
    array = _array(value)
    if array.dtype.kind not in "UO":
        return array
    made = np.empty(array.shape, object)
    for place, one in np.ndenumerate(array):
        made[place] = one.encode() if isinstance(one, str) else one
    return made


def _require_equal(one: object, other: object, msg: str | None) -> None:
    if one != other:
        raise AssertionError(f"{one} != {other}" + (f": {msg}" if msg else ""))


def main(*args: Any, **kwargs: Any) -> None:
    """Runs all tests of the program by calling `absl.testing.absltest.main`."""
    absltest.main(*args, **kwargs)
