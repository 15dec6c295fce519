"""`tf.py_function` and `tf.numpy_function`: calls of Python functions on the host, even from compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer, eager
from mirrored._typing import Array, DTypeLike, HostArray
from mirrored.tf._asking import inside_function
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._tensors import as_tensor


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: DTypeLike | Sequence[DTypeLike] | None = None,
    name: str | None = None,
) -> Any:
    """Calls a Python function on the host with tensors; compiled code calls the function at each execution.

    Args:
        func: The function. Omit it to use a decorator: ``@tf.py_function(Tout=tf.float32)``.
        inp: Its arguments.
        Tout: The dtype of the result, or a list of dtypes; None or an empty list for no result.
        name: Accepted and ignored.

    Returns:
        A tensor, a list of tensors, or None.

    TensorFlow: `tf.py_function`. A compiled caller must know the result's shape, so the function is called once more
    while tracing, with zeros for traced arguments. In compiled code it has no gradient.
    """
    del name
    if func is None:
        return lambda decorated: lambda *args: py_function(decorated, args, Tout)
    return _called(func, [as_tensor(one) for one in inp or ()], Tout)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: DTypeLike | Sequence[DTypeLike] | None = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Calls a Python function on the host with NumPy arrays; compiled code calls the function at each execution."""
    del stateful, name
    if func is None:
        return lambda decorated: lambda *args: numpy_function(decorated, args, Tout)
    given = func
    return _called(
        lambda *tensors: given(*(np.asarray(one) for one in tensors)), [as_tensor(x) for x in inp or ()], Tout
    )


def _called(func: Callable[..., Any], tensors: list[jax.Array], Tout: Any) -> Any:
    dtypes = [array_dtype(one) for one in (Tout if isinstance(Tout, (list, tuple)) else [] if Tout is None else [Tout])]

    def run(*arrays: Array | HostArray) -> list[Any]:
        result = func(*(jnp.asarray(one) for one in arrays))
        results = [] if not dtypes else list(result) if isinstance(result, (list, tuple)) else [result]
        if len(results) != len(dtypes):
            raise InvalidArgumentError.of(
                "tf.py_function, tf.numpy_function",
                found=f"the function returned a {type(result).__name__} of {len(results)}; Tout has {len(dtypes)}"
                if isinstance(result, (list, tuple))
                else f"the function returned one value; Tout has {len(dtypes)}",
                rule="the function must return one value for each dtype in Tout; a list or tuple is several values",
                remedy="return as many values, or change Tout; for one tensor return an array, as in np.array(rows)",
            )
        return [_of_dtype(one, np.dtype(dtype)) for one, dtype in zip(results, dtypes, strict=True)]

    # In a program, a call of constants may still return another value each time, or have a side effect.
    if inside_function() or any(isinstance(payload_of(one), Tracer) for one in tensors):
        outs = _from_program(run, tensors)
    else:
        outs = run(*tensors)
    if isinstance(Tout, (list, tuple)):
        return outs
    return outs[0] if outs else None


# What each kind of numbers can hold; signed and unsigned integers differ in their values only, which are compared.
_KINDS: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _of_dtype(result: Any, dtype: np.dtype[Any]) -> jax.Array:
    """Converts a result of the Python function to the dtype that the caller declared.

    Raises:
        InvalidArgumentError: The result would lose fractions, imaginary parts or high bits.
    """
    tensor = as_tensor(result)
    host = None if isinstance(tensor, Tracer) else np.asarray(result if hasattr(result, "dtype") else tensor)
    if host is not None and host.dtype != dtype and host.dtype.kind in "biufc" and dtype.kind in "biufc":
        loses_kind = _KINDS[host.dtype.kind] > _KINDS[dtype.kind]
        with np.errstate(all="ignore"):
            if dtype.kind in "biu" and (loses_kind or bool(np.any(host.astype(dtype) != host))):
                _refuse(host, dtype)
        if loses_kind:
            _refuse(host, dtype)
    return jnp.asarray(tensor, dtype)


def _refuse(result: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    raise InvalidArgumentError.of(
        "tf.py_function, tf.numpy_function",
        found=f"the function returned {np.array2string(result, threshold=5)} of dtype {result.dtype}; Tout is {dtype}",
        rule="a result must have the dtype in Tout, or one that can be converted to it without losing digits",
        remedy="convert the result in the function, or change Tout",
    )


def _from_program(run: Callable[..., list[Any]], tensors: list[jax.Array]) -> list[Any]:
    with eager():
        values = [payload_of(one) for one in tensors]
        example = run(*(jnp.zeros(one.shape, one.dtype) if isinstance(one, Tracer) else one for one in values))
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in example]

    def host(*arrays: Array | HostArray) -> list[Any]:
        return [np.asarray(one) for one in run(*arrays)]

    return list(io_callback(host, shapes, *tensors))


NAMES: dict[str, Any] = {"numpy_function": numpy_function, "py_function": py_function}
