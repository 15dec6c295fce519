"""`tf.debugging`: assertions on the values, shapes and dtypes of tensors.

Values are checked where they are known: eagerly, and for constants while tracing. In compiled code, a failed check is
logged at level ERROR at run time: an exception on one device would leave the others deadlocked in a collective. The
programs of `tf.saved_model` omit checks of values that are not known.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import Array, DTypeLike, HostArray, Operand
from mirrored.tf._data.host_arrays import as_bytes_array, is_text
from mirrored.tf._dtypes import as_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._host_calls import record_if_omitted
from mirrored.tf._table import op, tensors
from mirrored.tf._tensors import as_tensor, is_tensor

_log = logging.getLogger("mirrored.tf.debugging")


def require(called: str, holds: jax.Array, message: str | None, rule: str, values: list[Any]) -> None:
    """Checks a scalar condition: raises InvalidArgumentError if it is known, and logs a failure at run time otherwise.

    Args:
        called: The assertion, as messages name it.
        holds: The condition.
        message: What the user adds to the message.
        rule: What must hold.
        values: Tensors that the error shows.
    """
    try:
        failed = not bool(holds)
    except jax.errors.ConcretizationTypeError:
        if not record_if_omitted(called):
            jax.debug.callback(functools.partial(_log_failure, called, message, rule), holds)
        return
    if failed:
        raise InvalidArgumentError.of(
            called,
            found=(f"{message}: " if message else "") + f"the check failed for {', '.join(map(_short, values))}",
            rule=rule,
            remedy="correct the code that computes these values, or the assertion",
        )


def _short(value: Operand) -> str:
    array = as_bytes_array(value) if is_text(value) else np.asarray(value)  # type: ignore[arg-type]
    return np.array2string(array, threshold=10, separator=", ")


def _log_failure(called: str, message: str | None, rule: str, holds: Array | HostArray) -> None:
    if not bool(np.asarray(holds)):
        _log.error("%s failed in compiled code: %s%s", called, f"{message}: " if message else "", rule)


_COMPARISONS: dict[str, tuple[Callable[[Any, Any], jax.Array], str]] = {
    "equal": (jnp.equal, "x == y"),
    "none_equal": (jnp.not_equal, "x != y"),
    "less": (jnp.less, "x < y"),
    "less_equal": (jnp.less_equal, "x <= y"),
    "greater": (jnp.greater, "x > y"),
    "greater_equal": (jnp.greater_equal, "x >= y"),
}


def _comparison(name: str, compare: Callable[[Any, Any], jax.Array], relation: str) -> Callable[..., None]:
    called = f"tf.debugging.assert_{name}"
    rule = f"{relation} must hold for all elements"

    def check(x: Operand, y: Operand, message: str | None = None, summarize: object = None) -> None:
        del summarize
        left, right = tensors(x, y)
        require(called, jnp.all(compare(left, right)), message, rule, [left, right])

    check.__name__ = check.__qualname__ = f"assert_{name}"
    check.__doc__ = f"Raises InvalidArgumentError unless ``{relation}`` for all elements."
    return check


for _name, (_compare, _relation) in _COMPARISONS.items():
    _places = f"debugging.assert_{_name}" + (f" assert_{_name}" if _name in ("equal", "less", "greater") else "")
    op(_places)(_comparison(_name, _compare, _relation))


def _sign(name: str, test: Callable[[jax.Array], jax.Array]) -> Callable[..., None]:
    def check(x: Operand, message: str | None = None, summarize: object = None) -> None:
        del summarize
        value = as_tensor(x)
        require(f"tf.debugging.assert_{kind}", jnp.all(test(value)), message, f"every element must be {kind}", [value])

    kind = name.replace("_", "-")
    check.__name__ = check.__qualname__ = f"assert_{name}"
    check.__doc__ = f"Raises InvalidArgumentError unless every element is {kind}."
    return check


op("debugging.assert_positive")(_sign("positive", lambda x: x > 0))
op("debugging.assert_negative")(_sign("negative", lambda x: x < 0))
op("debugging.assert_non_negative")(_sign("non_negative", lambda x: x >= 0))
op("debugging.assert_non_positive")(_sign("non_positive", lambda x: x <= 0))


@op("debugging.assert_near")
def assert_near(
    x: Operand,
    y: Operand,
    rtol: Operand | None = None,
    atol: Operand | None = None,
    message: str | None = None,
    summarize: object = None,
) -> None:
    """Raises InvalidArgumentError unless two tensors are equal up to a relative and an absolute tolerance.

    The condition is ``|x - y| <= atol + rtol * |y|``; each tolerance is 10 epsilon by default.
    """
    del summarize
    left, right = tensors(x, y)
    floats = jnp.issubdtype(left.dtype, jnp.inexact)
    small = 10 * float(jnp.finfo(left.dtype).eps) if floats else 0.0  # type: ignore[no-untyped-call]
    bound = (small if atol is None else atol) + (small if rtol is None else rtol) * jnp.abs(right)
    rule = "x and y must be equal within the tolerance"
    require("tf.debugging.assert_near", jnp.all(jnp.abs(left - right) <= bound), message, rule, [left, right])


@op("debugging.Assert Assert")
def assert_(condition: Operand, data: Iterable[Operand], summarize: object = None) -> None:
    """Raises InvalidArgumentError, with `data` in its message, unless all elements of a condition are True."""
    del summarize
    require("tf.debugging.Assert", jnp.all(as_tensor(condition)), None, "the condition must be True", list(data))


@op("debugging.check_numerics")
def check_numerics(tensor: Operand, message: str) -> jax.Array:
    """Returns a tensor unchanged; raises InvalidArgumentError if it contains NaN or infinity."""
    value = as_tensor(tensor)
    require(
        "tf.debugging.check_numerics", jnp.all(jnp.isfinite(value)), message, "every element must be finite", [value]
    )
    return value


@op("debugging.assert_all_finite")
def assert_all_finite(x: Operand, message: str) -> jax.Array:
    """Returns a tensor unchanged; raises InvalidArgumentError if it contains NaN or infinity."""
    return check_numerics(x, message)


@op("debugging.enable_check_numerics", named=False)
def enable_check_numerics(stack_height_limit: int = 30, path_length_limit: int = 50) -> None:
    """Makes every later operation raise FloatingPointError if it produces a NaN (``jax_debug_nans``)."""
    del stack_height_limit, path_length_limit
    jax.config.update("jax_debug_nans", True)


@op("debugging.disable_check_numerics", named=False)
def disable_check_numerics() -> None:
    """Disables the NaN checks that `enable_check_numerics` enabled."""
    jax.config.update("jax_debug_nans", False)


@op("debugging.assert_rank assert_rank")
def assert_rank(x: Operand, rank: int, message: str | None = None) -> None:
    """Raises ValueError unless a tensor has the given number of dimensions."""
    _static("assert_rank", as_tensor(x).ndim == int(rank), message, f"the rank must be {rank}", as_tensor(x))


@op("debugging.assert_rank_at_least")
def assert_rank_at_least(x: Operand, rank: int, message: str | None = None) -> None:
    """Raises ValueError unless a tensor has at least the given number of dimensions."""
    _static(
        "assert_rank_at_least",
        as_tensor(x).ndim >= int(rank),
        message,
        f"the rank must be at least {rank}",
        as_tensor(x),
    )


@op("debugging.assert_rank_in")
def assert_rank_in(x: Operand, ranks: Iterable[SupportsIndex], message: str | None = None) -> None:
    """Raises ValueError unless the number of dimensions of a tensor is among the given numbers."""
    allowed = [int(one) for one in ranks]
    _static("assert_rank_in", as_tensor(x).ndim in allowed, message, f"the rank must be in {allowed}", as_tensor(x))


@op("debugging.assert_scalar")
def assert_scalar(tensor: Operand, message: str | None = None) -> jax.Array:
    """Returns a scalar tensor unchanged; raises ValueError if the tensor has dimensions."""
    _static("assert_scalar", as_tensor(tensor).ndim == 0, message, "the rank must be 0", as_tensor(tensor))
    return as_tensor(tensor)


@op("debugging.assert_same_float_dtype", named=False)
def assert_same_float_dtype(tensors: Iterable[Operand] | None = None, dtype: DTypeLike | None = None) -> Any:
    """Returns the floating dtype that all tensors have; raises ValueError if their dtypes differ or are not floats."""
    found = {as_dtype(as_tensor(one).dtype) for one in tensors or ()} | (
        {as_dtype(dtype)} if dtype is not None else set()
    )
    if len(found) > 1 or not all(one.is_floating for one in found):
        raise InvalidArgumentError.of(
            "tf.debugging.assert_same_float_dtype",
            found=f"the dtypes are {sorted(one.name for one in found)}",
            rule="all tensors must have one floating dtype",
            remedy="convert the tensors with tf.cast",
        )
    return found.pop() if found else as_dtype("float32")


@op("debugging.assert_type")
def assert_type(tensor: Operand, tf_type: DTypeLike, message: str | None = None) -> None:
    """Raises TypeError unless a tensor has the given dtype."""
    found = as_dtype(as_tensor(tensor).dtype)
    if found != as_dtype(tf_type):
        raise TypeError(
            f"{message or 'tf.debugging.assert_type'}: tensor is {found!r}, it must be {as_dtype(tf_type)!r}"
        )


@op("debugging.assert_integer")
def assert_integer(x: Operand, message: str | None = None) -> None:
    """Raises TypeError unless a tensor has an integer dtype."""
    if not as_dtype(as_tensor(x).dtype).is_integer:
        raise TypeError(f"{message or 'tf.debugging.assert_integer'}: expected integers, found {as_tensor(x).dtype}")


@op("debugging.assert_shapes")
def assert_shapes(
    shapes: dict[Any, Any] | Iterable[tuple[Operand, Any]],
    data: object = None,
    summarize: object = None,
    message: str | None = None,
) -> None:
    """Raises ValueError unless tensors have the given shapes, such as ``("N", 3)``; equal letters mean equal sizes."""
    del data, summarize
    pairs = shapes.items() if isinstance(shapes, dict) else shapes
    known: dict[str, int] = {}
    for value, wanted in pairs:
        shape = as_tensor(value).shape
        dimensions = [wanted] if isinstance(wanted, (int, str)) else list(wanted)
        rule = f"the shape must match {tuple(dimensions)}, with one size for each letter"
        _static("assert_shapes", len(dimensions) == len(shape), message, rule, as_tensor(value))
        for size, dimension in zip(shape, dimensions, strict=True):
            fits = dimension in (None, ".") or _dimension_fits(size, dimension, known)
            _static("assert_shapes", fits, message, rule, as_tensor(value))


def _dimension_fits(size: int, dimension: int | str, known: dict[str, int]) -> bool:
    if isinstance(dimension, str) and not dimension.isdigit():
        return known.setdefault(dimension, size) == size
    return int(dimension) == size


def _static(name: str, holds: bool, message: str | None, rule: str, value: jax.Array) -> None:
    if not holds:
        raise InvalidArgumentError.of(
            f"tf.debugging.{name}",
            found=f"{message + ': ' if message else ''}the tensor has the shape {tuple(value.shape)}",
            rule=rule,
            remedy="reshape the tensor, or correct the assertion",
        )


@op("debugging.is_numeric_tensor", named=False)
def is_numeric_tensor(tensor: Operand) -> bool:
    """Returns whether the argument is a tensor of numbers; booleans do not count."""
    return is_tensor(tensor) and as_tensor(tensor).dtype.kind != "b"
