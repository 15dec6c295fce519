"""`tf.get_static_value`, `tf.inside_function`, `tf.get_logger` and similar query functions."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

import jax
import numpy as np

from mirrored._jax.traces import NotConstant, Tracer
from mirrored._typing import Operand
from mirrored.tf._data.host_arrays import as_bytes_array, is_text
from mirrored.tf._module import current_name_scope
from mirrored.tf._ops.arrays import executing_eagerly
from mirrored.tf._shapes import TensorSpec
from mirrored.tf._static import known
from mirrored.tf._tensors import as_tensor


def get_static_value(tensor: object, partial: bool = False) -> Any:
    """Returns the value of a tensor as a NumPy array, or None if the value is known only at run time.

    TensorFlow: `tf.get_static_value`.
    """
    del partial
    if is_text(tensor):
        return as_bytes_array(tensor)[()]  # type: ignore[arg-type]
    try:
        return np.asarray(known(tensor))
    except (NotConstant, jax.errors.TracerArrayConversionError):
        return None


def is_symbolic_tensor(tensor: object) -> bool:
    """Returns whether a tensor is a JAX tracer, which has no value yet."""
    return isinstance(tensor, Tracer)


def inside_function() -> bool:
    """Returns whether the calling code is being traced by `tf.function` or another JAX transform."""
    return not executing_eagerly()


def type_spec_from_value(value: Operand) -> TensorSpec:
    """Returns the `tf.TensorSpec` of a tensor or tensor-like value."""
    return TensorSpec.from_tensor(as_tensor(value))


def get_logger() -> logging.Logger:
    """Returns the Python logger named "mirrored"."""
    return logging.getLogger("mirrored")


def timestamp(name: str | None = None) -> float:
    """Returns the current time in seconds since the Unix epoch.

    TensorFlow: `tf.timestamp`; in compiled code the time is that of tracing.
    """
    del name
    return time.time()


def enable_traceback_filtering() -> None:
    """Hides the stack frames of JAX's own code in tracebacks (the default)."""
    jax.config.update("jax_traceback_filtering", "auto")


def disable_traceback_filtering() -> None:
    """Shows the stack frames of JAX's own code in tracebacks."""
    jax.config.update("jax_traceback_filtering", "off")


def is_traceback_filtering_enabled() -> bool:
    """Returns whether tracebacks hide the stack frames of JAX's own code."""
    return bool(jax.config.jax_traceback_filtering != "off")  # type: ignore[attr-defined]


def assert_proper_iterable(values: object) -> None:
    """Raises TypeError if the argument is not an iterable, or is a tensor, an array or a string.

    Raises:
        TypeError: It is a tensor, array or string, or is not iterable.
    """
    if isinstance(values, (jax.Array, np.ndarray, str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"Expected a list or tuple of values, found {type(values).__name__}: write [value].")


class Algorithm(enum.Enum):
    """The random number algorithms that TensorFlow offers; a choice is accepted, but ignored.

    JAX's threefry is always used.
    """

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


def _no() -> bool:
    """Returns False; implements queries for features that `mirrored` does not have."""
    return False


def _yes() -> bool:
    """Returns True; implements queries for features that are always available."""
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
    "test.is_built_with_rocm": _no,
    "test.is_built_with_xla": _yes,
    "test.is_cpu_target_available": _yes,
}  # fmt: skip
